"""Caches that can be rolled back, and what they share.

| file | cache, and how it rolls back |
|---|---|
| `kv` | full attention, plain and quantised: a trim moves the offset (`base.OffsetCache`) |
| `rotating` | sliding window in sequence order: a trim moves an index |
| `arrays` | recurrent state: what its layer recorded (`models.gated_delta`), or whole blocks |
| `cache_list` | several caches of one layer: each by its own way |
| `group` | all caches of one list together, all or nothing; what to replay |
| `base` | `BaseCache`: the checks of every cache; what caches of rows share |
| `adopt` | from mlx-lm's caches to these and back: which class is whose backend |

Nothing is imported here, so that `speculate.backends.group` does not cost an import of mlx-lm.
"""
