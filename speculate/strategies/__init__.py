"""Who drafts, how much, and when not to. Pure host code."""
