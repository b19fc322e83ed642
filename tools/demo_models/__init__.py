"""Training of the three small demo models in ``speculate/data``."""
