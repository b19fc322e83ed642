"""What a cache must do so that tokens can be taken back: the laws of `Rollbackable`."""

from __future__ import annotations

from typing import Final

from speculate.protocols import Rollbackable, Trimmable
from speculate.testing.broken import law, require
from speculate.testing.feeding import Fed
from speculate.testing.kinds import CacheKind

PROMPTS: Final = (0, 7, 12)
"""Tokens fed before: none, all that fit in a window of 8 rows, and more."""

WIDTHS: Final = (1, 2, 5, 9)


@law
def an_empty_cache_answers(kind: CacheKind) -> None:
    """What may be asked of a cache before anything was fed, and what the answers are."""
    for cache in kind.make():
        require(isinstance(cache, Trimmable), f"{type(cache).__name__} is not Trimmable")
        require(isinstance(cache, Rollbackable), f"{type(cache).__name__} is not Rollbackable")
        # mlx-lm asks `if cache`: a false one would lose its mask and its state.
        require(bool(cache) is True, f"{type(cache).__name__} is false, as an empty list is")
        require(cache.length() == 0, f"length is {cache.length()}")
        require(cache.arrays() == [], f"{len(cache.arrays())} arrays are held")
        require(cache.can_trim(0), "says that it cannot take back 0 tokens")
        require(not cache.can_trim(1), "says that it can take back a token")
        require(cache.trim(0) == 0, "trim(0) is not 0")


@law
def a_layer_sees_what_mlx_lm_shows_it(kind: CacheKind) -> None:
    """Blocks of any width and single steps, recorded or not: as with mlx-lm's own cache."""
    for recording in (False, True):
        fed = Fed(kind)
        for width in (3, 1, 1, 9, 2, 1, 5, 1, 1, 1, 4, 80, 1, 2):
            if recording:
                fed.start()
            fed.feed(width)
        fed.feed(1)


@law
def what_is_taken_back_leaves_no_trace(kind: CacheKind) -> None:
    """Feeding `xs + ys` and trimming `len(ys)` equals feeding `xs`: every cut of every width."""
    for prompt in PROMPTS:
        fed = Fed(kind, prompt)
        fed.start()
        for width in WIDTHS:
            for kept in (0, width) if kind.whole_blocks else range(width + 1):
                fed.feed(kept, width - kept)
                fed.trim(width - kept)
        fed.feed(1)


@law
def single_steps_are_taken_back_as_blocks_are(kind: CacheKind) -> None:
    """Records stack: a draft model is fed token by token, and goes back by many at once."""
    for prompt in PROMPTS:
        fed = Fed(kind, prompt)
        fed.start()
        for right, wrong in ((0, 1), (2, 3), (1, 0), (0, 4), (3, 1), (4, 5)):
            for _ in range(right):
                fed.feed(1)
            for _ in range(wrong):
                fed.feed(0, 1)
            fed.trim(wrong)
        fed.feed(1)


@law
def several_blocks_are_taken_back_at_once(kind: CacheKind) -> None:
    """Across blocks of different widths, to the middle of one where that is possible."""
    widths = (3, 1, 4, 1, 5)
    ends = [sum(widths[-count:]) for count in range(1, len(widths) + 1)]
    for n in ends if kind.whole_blocks else range(1, sum(widths) + 1):
        fed = Fed(kind, 12)
        fed.start()
        right = sum(widths) - n
        for width in widths:
            good = min(width, right)
            fed.feed(good, width - good)
            right -= good
        fed.trim(n)
        fed.feed(2)


@law
def a_block_is_taken_back_bit_by_bit(kind: CacheKind) -> None:
    """One trim after another, and the text goes on from each of the places."""
    if kind.whole_blocks:
        return
    for prompt in PROMPTS:
        for right in range(6):
            fed = Fed(kind, prompt)
            fed.start()
            fed.feed(right, 9 - right)
            for n in (2, 1):
                fed.trim(n)
                fed.feed(0, 1)
                fed.trim(1)
            fed.trim(6 - right)
            fed.feed(1)
            fed.trim(1)
            fed.feed(2)


@law
def the_newest_64_tokens_can_be_taken_back(kind: CacheKind) -> None:
    """So many at least, whether they came one by one or in blocks."""
    for prompt in (12, 150):
        for width in (1, 8):
            fed = Fed(kind, prompt)
            fed.start()
            for _ in range(16 // width):
                fed.feed(width)
            for _ in range(64 // width):
                fed.feed(0, width)
            fed.trim(64)
            fed.feed(2)


@law
def too_much_is_refused_and_changes_nothing(kind: CacheKind) -> None:
    """Never a silent clamp: an error, and what could be taken back before still can."""
    for prompt in (0, 40):
        fed = Fed(kind, prompt)
        fed.start()
        fed.feed(0, 3)
        for n in (prompt + 4, prompt + 5, 10_000, -1, -3):
            fed.refuses(n)
            fed.check_lengths()
        fed.trim(3)
        fed.feed(2)


@law
def can_trim_tells_the_truth(kind: CacheKind) -> None:
    """What it says of each number is what `trim` then does."""
    for prompt in (0, 5, 40):
        for n in (-1, 0, 1, 3, 4, 7, 8, prompt + 7, prompt + 8):
            fed = Fed(kind, prompt)
            fed.start()
            fed.feed(0, 4)
            fed.feed(0, 3)
            for layer, cache in enumerate(fed.caches):
                possible = cache.can_trim(n)
                require(not possible or n == 0 or cache.is_trimmable(), _SAYS.format(layer, n))
            if all(cache.can_trim(n) for cache in fed.caches):
                fed.trim(n)
            else:
                fed.refuses(n)


_SAYS: Final = "layer {} says that it can take back {} tokens, and that it is not trimmable"
