"""What an adapter must do: the laws of `SpeculativeModel`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import mlx.core as mx

from speculate.decoding.window import speculation
from speculate.testing.broken import at, law, require
from speculate.testing.driving import STOCK, Driven, Fed, compare, feed

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
                compare(found, expected, driven.tolerance, start, f"{STOCK}, fed the same blocks")
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
        compare(found, expected, driven.tolerance, position, "one block")


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
