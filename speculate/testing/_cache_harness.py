"""Drives caches in `CacheTests`: one sequence, its expected rows, and runs that compare them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, cast, final

import attrs
import mlx.core as mx
from typing_extensions import Protocol

from speculate.backends.base import BaseCache
from speculate.backends.group import group_of
from speculate.errors import RewindError
from speculate.protocols import Rollbackable
from speculate.testing.contract import ContractError, InjectedError, at_step, refused, require
from speculate.testing.layers import VOCAB, Layer, run_layers


class StockCache(Protocol):
    """What every cache of mlx-lm reports: its arrays, their bytes, and whether it is empty."""

    state: object
    nbytes: int

    def empty(self) -> bool: ...


def require_moved(stock: Sequence[object]) -> None:
    """Check that mlx-lm's caches hold nothing once they were adopted."""
    emptied = all(cast(StockCache, cache).empty() for cache in stock)
    require(emptied, "an adopted cache still holds the rows, too")


def require_same_objects(back: Sequence[object], stock: Sequence[object]) -> None:
    """Check that `release` returned the caches that were adopted."""
    same = all(one is other for one, other in zip(back, stock, strict=True))
    require(same, "release returns another object than the one that was adopted")


def require_lengths(caches: Sequence[Rollbackable], length: int, when: str) -> None:
    """Check that every cache reports how many tokens it holds."""
    lengths = [cache.length() for cache in caches]
    require(lengths == [length] * len(lengths), f"lengths are {lengths} {when}")


@final
@attrs.define(eq=False)
class CacheSpec:
    """A kind of cache, the layers that use it, and what they see for the tested sequence."""

    make: Callable[[], list[Rollbackable]]
    layers: Sequence[Layer]
    adopt: Callable[[Sequence[object]], list[Rollbackable]]
    whole_blocks: bool
    prefill_differs: bool
    _stock: list[object] = attrs.field(init=False, factory=list)
    _expected: list[mx.array] = attrs.field(init=False, factory=list)

    def sequence(self, start: int, stop: int) -> list[int]:
        """Tokens `start` to `stop` of the sequence that all contracts feed."""
        return random.Random(0).choices(range(VOCAB), k=stop)[start:]

    def expected(self, start: int, stop: int) -> mx.array:
        """What the layers see for tokens `start` to `stop`, `(stop - start, n)` float32.

        The reference is what `release` returns for an empty cache: mlx-lm's own type, fed
        token by token and never trimmed.
        """
        self._stock = self._stock or [cache.release() for cache in self.make()]
        for token in self.sequence(len(self._expected), stop):
            self._expected.append(run_layers(self.layers, self._stock, mx.array([[token]])))
            mx.eval(self._expected[-1])
        return mx.concatenate(self._expected[start:stop])

    def require_next(self, stock: Sequence[object], position: int, said: str) -> None:
        """Check what the layers see for one more token over mlx-lm's caches."""
        tokens = mx.array([self.sequence(position, position + 1)])
        found = run_layers(self.layers, stock, tokens)
        require(bool(mx.array_equal(found, self.expected(position, position + 1))), said)


class CacheCheckpoint(NamedTuple):
    """An earlier `length` and `right` of a `CacheRun`, and what restores each of its caches."""

    length: int
    right: int
    restores: list[Callable[[], None]]


@final
class CacheRun:
    """Caches that hold the start of the sequence, and possibly wrong tokens after it.

    `length` is the number of tokens in them, and `right` of these belong to the sequence. The
    prompt is fed first, in one block, before recording starts; `rounds` counts the blocks.
    """

    def __init__(self, spec: CacheSpec, prompt: int = 0, *, recording: bool = False) -> None:
        self.spec = spec
        self.caches: list[Rollbackable] = spec.make()
        self.length: int = 0
        self.right: int = 0
        self.rounds: int = 0
        self.recording = False
        self._unknown = 0
        if prompt:
            self.feed(prompt)
        if recording:
            self.start()

    def start(self) -> None:
        for cache in self.caches:
            cache.start_speculation()
        self.recording = True

    def stop(self) -> None:
        for cache in self.caches:
            cache.stop_speculation()
        self.recording = False

    def feed(self, right: int, wrong: int = 0) -> None:
        """Feed one block: tokens of the sequence, whose rows are compared, then wrong ones."""
        tokens = self._block(right, wrong)
        with at_step(self.rounds, self.length):
            found = run_layers(self.spec.layers, self.caches, tokens)
            if right and (self.recording or right == 1 or not self.spec.prefill_differs):
                self._compare(found[:right])
        self.right += right
        self.length += right + wrong
        self.rounds += 1
        self.check_lengths()

    def round(self, right: int, wrong: int) -> None:
        """Feed a block and trim its wrong tokens; in two blocks if only whole ones can be."""
        if self.spec.whole_blocks and right and wrong:
            self.feed(right)
            right = 0
        if right + wrong:
            self.feed(right, wrong)
            self.trim(wrong)

    def _block(self, right: int, wrong: int) -> mx.array:
        tokens = self.spec.sequence(self.length, self.length + right + wrong)
        replaced = [(token + 1 + n % 2) % VOCAB for n, token in enumerate(tokens[right:])]
        return mx.array([[*tokens[:right], *replaced]], dtype=mx.uint32)

    def fail(self, width: int, after: int) -> None:
        """Run a forward over `width` wrong tokens that fails after so many layers."""
        group = group_of(self.caches)
        if group is None:
            return
        with at_step(self.rounds, self.length):
            tokens = self._block(0, width)
            with suppress(InjectedError), group.block(tokens) as fed:
                for layer, cache in zip(self.spec.layers[:after], self.caches[:after], strict=True):
                    layer(cache, fed)
                raise InjectedError
            self.check_lengths()

    def _compare(self, found: mx.array) -> None:
        expected = self.spec.expected(self.length, self.length + found.shape[0])
        if bool(mx.array_equal(found, expected)):
            return
        differs = cast("list[bool]", (found != expected).any(axis=-1).tolist())
        raise ContractError(
            "a layer sees other rows than over mlx-lm's own cache, fed token by token",
            position=self.length + differs.index(True),
        )

    def trim(self, n: int) -> None:
        """Trim the last `n` tokens, cache by cache as mlx-lm does."""
        with at_step(self.rounds, self.length):
            for layer, cache in enumerate(self.caches):
                require(cache.can_trim(n), f"layer {layer} says that it cannot trim {n} tokens")
                trimmed = cache.trim(n)
                require(trimmed == n, f"layer {layer} trimmed {trimmed} tokens instead of {n}")
        self.length -= n
        self.right = min(self.right, self.length)
        self.check_lengths()

    def refuses(self, n: int) -> None:
        """Check that every cache refuses to trim `n` tokens."""
        for layer, cache in enumerate(self.caches):
            with at_step(self.rounds, self.length), suppress(RewindError):
                trimmed = cache.trim(n)
                require(False, f"layer {layer} trimmed {trimmed} tokens when asked for {n}")

    def check_lengths(self) -> None:
        """Check that every cache reports how many tokens it holds."""
        lengths = [cache.length() + self._unknown for cache in self.caches]
        with at_step(self.rounds):
            same = lengths == [self.length] * len(lengths)
            require(same, f"lengths are {lengths} with {self.length} tokens fed")

    def release(self) -> list[object]:
        """Move the content into mlx-lm's caches, so that none is left, and return them."""
        with at_step(self.rounds, self.length):
            stock = [cache.release() for cache in self.caches]
            left = [len(cache.arrays()) for cache in self.caches]
            require(not any(left), f"{left} arrays remain after release")
        return stock

    def keeps_its_content(self) -> None:
        """Check that every cache refuses to return its content, and keeps it."""
        for layer, cache in enumerate(self.caches):
            said = f"layer {layer} returned its content while tokens wait to be replayed"
            with at_step(self.rounds, self.length), refused(RewindError, said):
                cache.release()
        self.check_lengths()

    def continue_with(self, caches: list[Rollbackable]) -> None:
        """Continue with other caches, not recording, that were adopted with the same content."""
        self.caches = caches
        self.recording = False
        # A recurrent state that was mlx-lm's does not know the length of its sequence.
        known = {cache.length() for cache in caches}
        self._unknown = self.length if known == {0} else 0
        self.check_lengths()

    def checkpoint(self) -> CacheCheckpoint:
        with at_step(self.rounds, self.length):
            restores = [cache.checkpoint() for cache in self.caches]
        return CacheCheckpoint(self.length, self.right, restores)

    def restore(self, checkpoint: CacheCheckpoint) -> None:
        with at_step(self.rounds, self.length):
            for restore in checkpoint.restores:
                restore()
        self.length, self.right = checkpoint.length, checkpoint.right
        self.check_lengths()


@final
class UntrimmableCache(BaseCache):
    """As long as another cache, and refuses to trim until `trimmable` is set."""

    def __init__(self, cache: Rollbackable) -> None:
        self._cache = cache
        self.trimmable = False

    def length(self) -> int:
        return self._cache.length()

    def can_trim(self, n: int, /) -> bool:
        return self.trimmable or n == 0

    def trim_rows(self, n: int, /) -> None:
        """Its length is that of the other cache."""

    def checkpoint(self) -> Callable[[], None]:
        return lambda: None

    def arrays(self) -> list[mx.array]:
        return []

    def move_out(self) -> object:
        return self
