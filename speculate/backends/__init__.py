"""Caches that can be rolled back, one kind a file; `adopt` makes them from mlx-lm's.

Nothing is imported here, so that `speculate.backends.group` does not cost an import of mlx-lm.
"""
