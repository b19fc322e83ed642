"""Masks that mlx-lm does not make."""

from __future__ import annotations

import mlx.core as mx


def mask_with_sinks(rows: int, prior: int, window: int, sinks: int) -> mx.array:
    """What single steps see. mlx-lm's mask for blocks lets the sinks slide out of view.

    Args:
        rows: Rows of the block.
        prior: Rows in front of it, the sinks first.
        window: Rows that a single step sees, itself and the sinks included.
        sinks: Rows that are always seen.

    Returns:
        `(rows, prior + rows)`, true where a row sees a column.
    """
    row = mx.arange(prior, prior + rows)[:, None]
    column = mx.arange(prior + rows)[None]
    recent = row < column + (window - sinks)
    mask: mx.array = (column <= row) & (recent | (column < sinks))
    return mask
