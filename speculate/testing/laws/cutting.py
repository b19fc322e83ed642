"""What a model's caches must do under `trim`, layer by layer as loops for mlx-lm call it."""

from __future__ import annotations

from collections.abc import Iterable

from speculate.testing.broken import at, law, require
from speculate.testing.driving import Driven, Fed, refused


@law
def a_cut_leaves_no_trace(
    driven: Driven, prompt: int = 12, widths: Iterable[int] = (1, 4), *, singly: bool = False
) -> None:
    """Blocks cut to every prefix by `trim`, layer by layer as mlx-lm does it.

    For models of which every token can be taken back.

    Args:
        driven: The model.
        prompt: Tokens fed before.
        widths: Of the blocks.
        singly: Feed a block token by token, so that records stack.
    """
    fed = Fed(driven, prompt)
    for cache in fed.caches:
        cache.start_speculation()
    for width in widths:
        for kept in range(width + 1):
            for right, wrong in ((1, 0),) * kept + ((0, 1),) * (width - kept):
                if singly:
                    fed.feed(right, wrong)
            if not singly:
                fed.feed(kept, width - kept)
            fed.trim(width - kept)
    fed.feed(1)


@law
def a_block_is_cut_again_and_again(driven: Driven, prompt: int = 12) -> None:
    """Bit by bit, and the text goes on from each of the places.

    For models of which every token can be taken back.
    """
    for right in range(5):
        fed = Fed(driven, prompt)
        for cache in fed.caches:
            cache.start_speculation()
        fed.feed(right, 9 - right)
        for n in (2, 1, 1):
            fed.trim(n)
            fed.feed(0, 1)
            fed.trim(1)
        fed.trim(5 - right)
        fed.feed(2)


@law
def a_trim_is_exact_or_refused(driven: Driven) -> None:
    """As mlx-lm's loops do it, layer by layer: nothing is trimmed that one layer could not."""
    for prompt in (0, 12, 90):
        fed = Fed(driven, prompt)
        fed.feed(1)
        for cache in fed.caches:
            cache.start_speculation()
        for width in (4, 1, 3):
            fed.feed(0, width)
        for n in (10_000, prompt + 10, -1, *(() if fed.can_trim(9) else (9,))):
            with at(fed.rounds, fed.length):
                for layer, cache in enumerate(fed.caches):
                    require(refused(cache, n), f"layer {layer} took back {n}")
        for n in (3, 1, 4):
            with at(fed.rounds, fed.length):
                require(fed.can_trim(n), f"the newest block of {n} cannot be taken back")
            fed.trim(n)
        fed.feed(2)


@law
def nothing_is_trimmed_where_nothing_is_recorded(driven: Driven) -> None:
    """A generic caller must not trim attention and leave the recurrent state behind."""
    fed = Fed(driven, 12)
    possible = fed.can_trim(2)
    for layer, cache in enumerate(fed.caches):
        if not possible:
            require(refused(cache, 2), f"layer {layer} took back what another could not")
    if possible:
        fed.trim(2)
        fed.length -= 2
    fed.feed(2)
