"""Sampling: how tokens are chosen, and which drafts are accepted."""
