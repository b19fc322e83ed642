"""Strategies: which proposer drafts, and how many tokens."""
