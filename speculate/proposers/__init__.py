"""Proposers: they draft the next tokens."""
