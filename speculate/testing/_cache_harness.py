"""Drives caches in `CacheTests`: one sequence, its expected rows, and runs that compare them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import cast, final

import attrs
import mlx.core as mx

from speculate.backends.group import group_of
from speculate.errors import RewindError
from speculate.protocols import Rollbackable
from speculate.testing.contract import ContractError, InjectedError, at_step, require
from speculate.testing.layers import VOCAB, Layer, forward, run_layers

Adopt = Callable[[Sequence[object]], list[Rollbackable]]
"""Moves the content of mlx-lm's caches into rewindable ones."""


@final
class CacheSpec:
    """A kind of cache, the layers that use it, and the sequence they are tested on.

    Args:
        make: Returns fresh, empty caches of one group.
        layers: One for each cache.
        adopt: Moves the content of mlx-lm's caches into such caches.
        whole_blocks: Only whole blocks can be trimmed.
        prefill_differs: Rows of an unrecorded block see less in mlx-lm than those of single
            steps do, as in a window with sinks.
    """

    def __init__(
        self,
        make: Callable[[], list[Rollbackable]],
        layers: Sequence[Layer],
        adopt: Adopt,
        *,
        whole_blocks: bool = False,
        prefill_differs: bool = False,
    ) -> None:
        self.make = make
        self.layers: list[Layer] = list(layers)
        self.adopt = adopt
        self.whole_blocks = whole_blocks
        self.prefill_differs = prefill_differs
        self._rng = random.Random(0)
        self._sequence: list[int] = []
        self._stock: list[object] = []
        self._expected: list[mx.array] = []

    def sequence(self, stop: int) -> list[int]:
        """The first tokens of the sequence that all contracts feed."""
        while len(self._sequence) < stop:
            self._sequence.append(self._rng.randrange(VOCAB))
        return self._sequence[:stop]

    def expected(self, start: int, stop: int) -> mx.array:
        """What the layers see for some tokens of the sequence.

        The reference is what `hand_back` returns for an empty cache: mlx-lm's own type, fed
        token by token and never trimmed.

        Args:
            start: First position.
            stop: Position after the last one.

        Returns:
            `(stop - start, n)` float32.
        """
        self._stock = self._stock or [cache.hand_back() for cache in self.make()]
        sequence = self.sequence(stop)
        while len(self._expected) < stop:
            tokens = mx.array([[sequence[len(self._expected)]]])
            self._expected.append(run_layers(self.layers, self._stock, tokens))
            mx.eval(self._expected[-1])
        return mx.concatenate(self._expected[start:stop])


@final
@attrs.frozen(eq=False)
class CacheCheckpoint:
    """An earlier state of a `CacheRun`.

    Attributes:
        length: Tokens in the caches.
        right: How many of them were tokens of the sequence.
        restores: For each cache, the function that restores it.
    """

    length: int
    right: int
    restores: list[Callable[[], None]]


@final
class CacheRun:
    """Caches that hold the start of the sequence, and possibly wrong tokens after it.

    Args:
        spec: The kind of cache.
        prompt: Number of tokens of the sequence to feed first, in one block.

    Attributes:
        caches: The caches.
        length: Tokens in them.
        right: How many of these belong to the sequence.
        rounds: Number of blocks fed.
    """

    def __init__(self, spec: CacheSpec, prompt: int = 0) -> None:
        self.spec = spec
        self.caches: list[Rollbackable] = spec.make()
        self.length: int = 0
        self.right: int = 0
        self.rounds: int = 0
        self._recording = False
        self._unknown = 0
        if prompt:
            self.feed(prompt)

    def start(self) -> None:
        """Start recording."""
        for cache in self.caches:
            cache.start_speculation()
        self._recording = True

    def stop(self) -> None:
        """Stop recording."""
        for cache in self.caches:
            cache.stop_speculation()
        self._recording = False

    def feed(self, right: int, wrong: int = 0) -> None:
        """Feed one block.

        Args:
            right: Number of tokens that continue the sequence. What the layers see for them
                is compared.
            wrong: Number of tokens after those that do not.

        Raises:
            ContractError: A layer sees something else than over mlx-lm's own cache.
        """
        tokens = self._block(right, wrong)
        with at_step(self.rounds, self.length):
            found = forward(self.spec.layers, self.caches, tokens)
            if right and (self._recording or right == 1 or not self.spec.prefill_differs):
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
        tokens = self.spec.sequence(self.length + right + wrong)[self.length :]
        replaced = [(token + 1 + n % 2) % VOCAB for n, token in enumerate(tokens[right:])]
        return mx.array([[*tokens[:right], *replaced]], dtype=mx.uint32)

    def fail(self, width: int, after: int) -> None:
        """Run a forward that fails part way.

        Args:
            width: Number of tokens of its block, all wrong.
            after: How many layers consume the block before the failure.

        Raises:
            ContractError: A cache is longer than before.
        """
        group = group_of(self.caches)
        if group is None:
            return
        with at_step(self.rounds, self.length):
            tokens = self._block(0, width)
            with suppress(InjectedError), group.block(tokens) as fed:
                for layer, cache in list(zip(self.spec.layers, self.caches, strict=True))[:after]:
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
        """Trim the last `n` tokens, cache by cache as mlx-lm does.

        Raises:
            ContractError: A cache trims another number, or says that it cannot.
        """
        with at_step(self.rounds, self.length):
            for layer, cache in enumerate(self.caches):
                require(cache.can_trim(n), f"layer {layer} says that it cannot trim {n} tokens")
                trimmed = cache.trim(n)
                require(trimmed == n, f"layer {layer} trimmed {trimmed} tokens instead of {n}")
        self.length -= n
        self.right = min(self.right, self.length)
        self.check_lengths()

    def refuses(self, n: int) -> None:
        """Check that every cache refuses to trim `n` tokens.

        Raises:
            ContractError: A cache trims something, or raises another error.
        """
        for layer, cache in enumerate(self.caches):
            with at_step(self.rounds, self.length):
                try:
                    trimmed = cache.trim(n)
                except RewindError:
                    continue
                raise ContractError(f"layer {layer} trimmed {trimmed} tokens when asked for {n}")

    def check_lengths(self) -> None:
        """Check that every cache reports how many tokens it holds.

        Raises:
            ContractError: One does not.
        """
        lengths = [cache.length() + self._unknown for cache in self.caches]
        if lengths != [self.length] * len(lengths):
            raise ContractError(
                f"lengths are {lengths} with {self.length} tokens fed", round=self.rounds
            )

    def hand_back(self) -> list[object]:
        """Move the content into mlx-lm's caches and return them.

        Raises:
            ContractError: A rewindable cache still holds arrays.
        """
        with at_step(self.rounds, self.length):
            stock = [cache.hand_back() for cache in self.caches]
            left = [len(cache.arrays()) for cache in self.caches]
            require(not any(left), f"{left} arrays remain after hand_back")
        return stock

    def keeps_its_content(self) -> None:
        """Check that every cache refuses to return its content, and keeps it.

        Raises:
            ContractError: A cache returns it, or raises another error.
        """
        for layer, cache in enumerate(self.caches):
            with at_step(self.rounds, self.length):
                try:
                    cache.hand_back()
                except RewindError:
                    continue
                raise ContractError(
                    f"layer {layer} returned its content while tokens wait to be replayed"
                )
        self.check_lengths()

    def continue_with(self, caches: list[Rollbackable]) -> None:
        """Continue with other caches that were adopted with the same content.

        Args:
            caches: The caches, not recording.
        """
        self.caches = caches
        self._recording = False
        # A recurrent state that was mlx-lm's does not know the length of its sequence.
        known = {cache.length() for cache in caches}
        self._unknown = self.length if known == {0} else 0
        self.check_lengths()

    def checkpoint(self) -> CacheCheckpoint:
        """Remember the current state of every cache."""
        with at_step(self.rounds, self.length):
            restores = [cache.checkpoint() for cache in self.caches]
        return CacheCheckpoint(self.length, self.right, restores)

    def restore(self, checkpoint: CacheCheckpoint) -> None:
        """Restore the state of a checkpoint.

        Raises:
            ContractError: A cache has another length afterwards.
        """
        with at_step(self.rounds, self.length):
            for restore in checkpoint.restores:
                restore()
        self.length, self.right = checkpoint.length, checkpoint.right
        self.check_lengths()
