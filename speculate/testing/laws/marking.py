"""What a cache must do where a loop marks a place, starts and stops, or fails half way."""

from __future__ import annotations

import mlx.core as mx

from speculate.testing.broken import law
from speculate.testing.feeding import Fed
from speculate.testing.kinds import CacheKind


@law
def starting_and_stopping_keep_the_content(kind: CacheKind) -> None:
    """Again and again, wherever the text is."""
    fed = Fed(kind, 7)
    for width in (1, 3, 2, 8, 1):
        fed.start()
        fed.feed(width, 0)
        fed.start()
        fed.feed(0, width)
        fed.trim(width)
        fed.stop()
        fed.feed(1)
        fed.stop()
    fed.feed(1)


@law
def a_checkpoint_returns_to_where_it_was_made(kind: CacheKind) -> None:
    """Recording or not, from far behind, one inside another, and more than once."""
    for recording in (False, True):
        for prompt in (0, 1, 40):
            fed = Fed(kind, prompt)
            for widths in ((1,), (5, 1), (80, 3), (1, 1, 1)):
                if recording:
                    fed.start()
                outer = fed.mark()
                for width in widths:
                    fed.feed(0, width)
                    mx.eval([cache.arrays() for cache in fed.caches])
                inner = fed.mark()
                fed.feed(0, 2)
                fed.return_to(inner)
                fed.return_to(outer)
                fed.feed(0, 1)
                fed.return_to(outer)
                fed.feed(2)


@law
def a_forward_that_fails_leaves_no_trace(kind: CacheKind) -> None:
    """Nothing of its block, in any layer, and what was recorded before can be taken back."""
    for after in range(len(kind.layers) + 1):
        for width in (1, 5, 30):
            fed = Fed(kind, 12)
            fed.fail(width, after)
            fed.feed(2)
            fed.start()
            fed.fail(width, after)
            fed.feed(0, 4)
            fed.fail(width, after)
            fed.trim(4)
            fed.feed(2)
