"""Caches fed as a model feeds them, and compared at every token with mlx-lm's own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import cast, final

import attrs
import mlx.core as mx

from speculate.backends.group import group_of
from speculate.errors import RewindError
from speculate.protocols import Rollbackable
from speculate.testing.broken import BrokenLawError, at, require
from speculate.testing.kinds import CacheKind, PartFailedError, forward
from speculate.testing.layers import VOCAB


@final
@attrs.frozen(eq=False)
class Mark:
    """A point in the past of caches that they can return to.

    Attributes:
        length: Tokens in them.
        right: How many of these were the text's.
        go_back: Returns to it, cache by cache.
    """

    length: int
    right: int
    go_back: list[Callable[[], None]]


@final
class Fed:
    """Caches of one kind that hold the beginning of the text, and perhaps wrong tokens behind.

    Args:
        kind: Of which kind.
        prompt: Tokens of the text to begin with, fed in one block.

    Attributes:
        caches: The caches.
        length: Tokens in them.
        right: How many of these are the text's.
        rounds: Blocks that were fed.
    """

    def __init__(self, kind: CacheKind, prompt: int = 0) -> None:
        self.kind = kind
        self.caches: list[Rollbackable] = kind.make()
        self.length: int = 0
        self.right: int = 0
        self.rounds: int = 0
        self._recording = False
        self._untold = 0
        if prompt:
            self.feed(prompt)

    def start(self) -> None:
        """Record from here on."""
        for cache in self.caches:
            cache.start_speculation()
        self._recording = True

    def stop(self) -> None:
        """Record no longer."""
        for cache in self.caches:
            cache.stop_speculation()
        self._recording = False

    def feed(self, right: int, wrong: int = 0) -> None:
        """Feed one block.

        Args:
            right: Tokens that go on with the text. What the layers see for them is compared.
            wrong: Tokens behind them that do not.

        Raises:
            BrokenLawError: A layer sees something else than with mlx-lm's own cache.
        """
        tokens = self._block(right, wrong)
        with at(self.rounds, self.length):
            found = forward(self.kind.layers, self.caches, tokens)
            if right and (self._recording or right == 1 or not self.kind.prefill_differs):
                self._compare(found[:right])
        self.right += right
        self.length += right + wrong
        self.rounds += 1
        self.check_lengths()

    def round(self, right: int, wrong: int) -> None:
        """Feed a block whose wrong end is taken back; in two where only whole blocks can be."""
        if self.kind.whole_blocks and right and wrong:
            self.feed(right)
            right = 0
        if right + wrong:
            self.feed(right, wrong)
            self.trim(wrong)

    def _block(self, right: int, wrong: int) -> mx.array:
        text = self.kind.text(self.length + right + wrong)[self.length :]
        wrongly = [(token + 1 + n % 2) % VOCAB for n, token in enumerate(text[right:])]
        return mx.array([[*text[:right], *wrongly]], dtype=mx.uint32)

    def fail(self, width: int, after: int) -> None:
        """A forward that fails when `after` layers have consumed a block of wrong tokens.

        Raises:
            BrokenLawError: Some cache is longer than before.
        """
        group = group_of(self.caches)
        if group is None:
            return
        with at(self.rounds, self.length):
            tokens = self._block(0, width)
            with suppress(PartFailedError), group.block(tokens) as fed:
                for layer, cache in list(zip(self.kind.layers, self.caches, strict=True))[:after]:
                    layer(cache, fed)
                raise PartFailedError
            self.check_lengths()

    def _compare(self, found: mx.array) -> None:
        expected = self.kind.expected(self.length, self.length + found.shape[0])
        if bool(mx.array_equal(found, expected)):
            return
        apart = cast("list[bool]", (found != expected).any(axis=-1).tolist())
        raise BrokenLawError(
            "a layer sees other rows than with mlx-lm's own cache, fed token by token",
            position=self.length + apart.index(True),
        )

    def trim(self, n: int) -> None:
        """Take tokens back, cache by cache as mlx-lm does.

        Raises:
            BrokenLawError: A cache does not, or says that it could not.
        """
        with at(self.rounds, self.length):
            for layer, cache in enumerate(self.caches):
                require(cache.can_trim(n), f"layer {layer} says that it cannot take back {n}")
                taken = cache.trim(n)
                require(taken == n, f"layer {layer} took back {taken} tokens instead of {n}")
        self.length -= n
        self.right = min(self.right, self.length)
        self.check_lengths()

    def refuses(self, n: int) -> None:
        """Ask every cache for more than it has.

        Raises:
            BrokenLawError: One of them takes something back, or raises anything else.
        """
        for layer, cache in enumerate(self.caches):
            with at(self.rounds, self.length):
                try:
                    taken = cache.trim(n)
                except RewindError:
                    continue
                raise BrokenLawError(f"layer {layer} took back {taken} tokens when asked for {n}")

    def check_lengths(self) -> None:
        """Every cache tells how many tokens it holds.

        Raises:
            BrokenLawError: One does not.
        """
        lengths = [cache.length() + self._untold for cache in self.caches]
        if lengths != [self.length] * len(lengths):
            raise BrokenLawError(
                f"lengths are {lengths} with {self.length} tokens fed", round=self.rounds
            )

    def hand_back(self) -> list[object]:
        """Move the text into mlx-lm's caches.

        Raises:
            BrokenLawError: Something of it stays behind.
        """
        with at(self.rounds, self.length):
            stock = [cache.hand_back() for cache in self.caches]
            left = [len(cache.arrays()) for cache in self.caches]
            require(not any(left), f"{left} arrays stay behind after hand_back")
        return stock

    def go_on_with(self, caches: list[Rollbackable]) -> None:
        """Go on with other caches, adopted with the text in them. They record nothing."""
        self.caches = caches
        self._recording = False
        # A recurrent state that mlx-lm has had cannot tell how long its text is.
        told = {cache.length() for cache in caches}
        self._untold = self.length if told == {0} else 0
        self.check_lengths()

    def mark(self) -> Mark:
        """Hold on to the present."""
        with at(self.rounds, self.length):
            go_back = [cache.checkpoint() for cache in self.caches]
        return Mark(self.length, self.right, go_back)

    def return_to(self, mark: Mark) -> None:
        """Return to where a mark was made.

        Raises:
            BrokenLawError: A cache is of another length then.
        """
        with at(self.rounds, self.length):
            for restore in mark.go_back:
                restore()
        self.length, self.right = mark.length, mark.right
        self.check_lengths()
