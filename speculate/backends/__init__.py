"""Caches that can be rolled back, and what they share.

| file | cache, and how it rolls back |
|---|---|
| `kv` | full attention, plain and quantised: a trim moves the offset (`base`) |
| `rotating` | sliding window in sequence order: a trim moves an index |
| `arrays` | recurrent state: what its layer recorded, or the snapshot before whole blocks |
| `cache_list` | several caches of one layer: each by its own way |
| `group` | all caches of one list together, all or nothing; `fed_tokens` knows what to replay |
| `adopt` | from mlx-lm's caches to these and back |

Nothing is imported here, so that `speculate.backends.group` does not cost an import of mlx-lm.
"""
