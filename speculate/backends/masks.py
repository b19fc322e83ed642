"""Masks of a sliding window that is kept in time order."""

from __future__ import annotations

import mlx.core as mx
from mlx_lm.models.base import create_causal_mask


def mask_of_one(prior: int, window: int) -> mx.array | None:
    """What a single row sees: needed only by a layer that sees less than its cache shows.

    Args:
        prior: Rows in front of it.
        window: Rows that it sees, itself included.

    Returns:
        `(prior + 1,)`, true where it sees a column; `None` where it sees all.
    """
    hidden = prior + 1 - window
    return mx.arange(prior + 1) >= hidden if hidden > 0 else None


def mask_of_block(
    rows: int, prior: int, window: int, sinks: int, *, as_array: bool
) -> mx.array | str:
    """What the rows of a block see, as in mlx-lm, and besides it the sinks.

    Args:
        rows: Rows of the block.
        prior: Rows in front of it.
        window: Rows that a single step sees.
        sinks: First rows that are always seen.
        as_array: Whether the name of a mask will not do.
    """
    if prior + rows <= window and not as_array:
        return "causal"
    if sinks:
        return mask_with_sinks(rows, prior, window, sinks)
    mask: mx.array = create_causal_mask(rows, prior, window_size=window)
    return mask


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
