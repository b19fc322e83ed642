"""One kind of cache a file: how it takes tokens back. `adoption` turns mlx-lm's into these.

Nothing is imported here, so that `speculate.backends.group` does not cost an import of mlx-lm.
"""
