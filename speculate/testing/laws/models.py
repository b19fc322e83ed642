"""What an adapter must do: the laws of `SpeculativeModel`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, cast, final

import mlx.core as mx

from speculate.decoding.window import speculation
from speculate.protocols import Rollbackable
from speculate.testing.broken import at, law, require
from speculate.testing.driving import Driven, Fed, compare, feed, refused
from speculate.testing.feeding import PartFailedError

PIECES: Final = (7, 1, 2, 3, 9, 4, 1, 1, 5, 6, 8, 33)
ROTATED: Final = 1e-4
"""How far mlx-lm's own single steps are off once a window has wrapped, and its rows are rotated."""

PROMPTS: Final = (0, 7, 23)
"""Tokens fed before: none, all that fit in a window of 8 rows, and more than two of them."""

Rounds = Sequence[tuple[int, int]]
"""Tokens of a block, and how many of them are the text's and kept."""

ROUNDS: Final[Rounds] = [
    (1 + drafts, 1 + right) for drafts in (4, 0, 1, 2, 7) for right in range(drafts, -1, -1)
]
"""Every depth, wrong at every place and nowhere."""


@law
def a_forward_says_what_mlx_lm_says(driven: Driven) -> None:
    """At every width, over its own caches and over mlx-lm's: the stock model's logits."""
    ours, theirs = driven.stock_caches(), driven.stock_caches()
    fed, start = Fed(driven), 0
    for round, width in enumerate(PIECES):
        fed.feed(width)
        tokens = driven.text[start : start + width]
        with at(round, start):
            found = feed(driven.model, tokens, ours)
            if driven.stock is None:
                driven.compare(found, start, max(driven.tolerance, ROTATED))
            else:
                expected = driven.stock(mx.array([tokens], dtype=mx.uint32), cache=theirs)[0]
                compare(found, expected, driven.tolerance, start)
        start += width


@law
def blocks_are_single_steps(driven: Driven) -> None:
    """One block of `T` tokens equals `T` steps; its hidden states as well as its logits."""
    count = 40
    tokens = mx.array([driven.text[:count]], dtype=mx.uint32)
    whole = driven.model.forward(tokens, driven.model.make_cache())
    width = whole.hidden.shape[-1]
    require(whole.logits.shape == (1, count, driven.model.vocab_size), f"{whole.logits.shape}")
    require(whole.hidden.shape == (1, count, width), f"hidden is {whole.hidden.shape}")
    fed = Fed(driven)
    for position in range(count):
        out = fed.feed(1)
        found, expected = out.hidden[0], whole.hidden[0, position : position + 1]
        compare(found, expected, driven.tolerance, position)


@law
def whatever_is_rejected_leaves_no_trace(
    driven: Driven, prompts: Sequence[int] = PROMPTS, rounds: Rounds = ROUNDS
) -> None:
    """Rounds in one window: the next logits of each are those of a cold prefill."""
    for prompt in prompts:
        fed = Fed(driven, prompt)
        with speculation(fed.caches) as window:
            for width, kept in rounds:
                fed.feed(kept, width - kept)
                window.keep(kept)
            fed.feed(1)


@law
def a_rewind_reaches_over_several_forwards(
    driven: Driven, prompt: int = 12, splits: Iterable[Sequence[int]] = ((3, 1, 4), (1,) * 4)
) -> None:
    """A window keeps any number of the first tokens of its blocks, and goes on from there."""
    for widths in splits:
        for kept in range(sum(widths) + 1):
            fed, right = Fed(driven, prompt), kept
            with speculation(fed.caches) as window:
                for width in widths:
                    good = min(width, right)
                    fed.feed(good, width - good)
                    right -= good
                window.keep(kept)
                fed.feed(2)
                window.keep(2)


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


@law
def leaving_a_window_takes_back_what_was_not_kept(driven: Driven) -> None:
    """Also by an exception, and also what was fed token by token."""
    for error in (None, ZeroDivisionError):
        fed = Fed(driven, 12)
        try:
            with speculation(fed.caches) as window:
                fed.feed(2)
                window.keep(2)
                fed.feed(0, 5)
                fed.feed(0, 1)
                if error is not None:
                    raise error
        except ZeroDivisionError:
            pass
        fed.feed(3)


@law
def a_forward_that_fails_consumes_nothing(driven: Driven) -> None:
    """Every layer is as before, in whichever layer it failed."""
    layers = len(driven.model.make_cache())
    for failing in {0, 1, layers // 2, layers - 1} & set(range(layers)):
        fed = Fed(driven, 12)
        for width in (1, 5):
            _fail(fed, failing, width)
        fed.feed(1)
        with speculation(fed.caches) as window:
            fed.feed(0, 3)
            for width in (1, 5):
                _fail(fed, failing, width)
            window.keep(0)
            fed.feed(2)
            window.keep(2)
        fed.feed(1)


def _fail(fed: Fed, layer: int, width: int) -> None:
    """A forward whose layer fails as soon as it reaches for its cache."""
    caches: list[object] = [*fed.caches]
    caches[layer] = OutOfReach(fed.caches[layer])
    tokens = mx.array([fed.driven.wrong(fed.length, width)], dtype=mx.uint32)
    with at(fed.rounds, fed.length):
        try:
            mx.eval(fed.driven.model.forward(tokens, caches).logits)
        except PartFailedError:
            return
        require(False, f"layer {layer} did not use the cache that it was given")


@final
class OutOfReach:
    """Stands for a cache, and fails when a layer writes to it."""

    def __init__(self, cache: Rollbackable) -> None:
        self._cache = cache

    def __getattr__(self, name: str) -> object:
        if name in ("update_and_fetch", "advance"):
            raise PartFailedError
        return cast(object, getattr(self._cache, name))

    def __getitem__(self, index: int) -> object:
        entry = cast(Sequence[object], self._cache)[index]
        # A cache that holds several gives one of them.
        return OutOfReach(entry) if isinstance(entry, Rollbackable) else entry

    def __setitem__(self, index: int, value: object) -> None:
        raise PartFailedError
