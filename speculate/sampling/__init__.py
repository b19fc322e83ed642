"""The target's choice of tokens, and which drafts stand."""
