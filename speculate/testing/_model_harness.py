"""Drives a model over one sequence in `ModelTests`, and compares logits with a cold prefill."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final, cast, final

import mlx.core as mx

from speculate.errors import RewindError
from speculate.protocols import Forward, Rollbackable, SpeculativeModel, StockModel
from speculate.testing.contract import ContractError, at_step

STOCK: Final = "mlx-lm's own model"
"""How errors name the reference model."""


def feed(model: SpeculativeModel, tokens: Sequence[int], caches: Sequence[object]) -> mx.array:
    """Run one forward and return its logits, `(T, vocabulary)`."""
    logits = model.forward(mx.array([list(tokens)], dtype=mx.uint32), caches).logits[0]
    mx.eval(logits)
    return logits


def distances(found: mx.array, expected: mx.array) -> list[float]:
    """The largest absolute difference in each row of two arrays `(T, n)`."""
    differences = mx.abs(found.astype(mx.float32) - expected.astype(mx.float32)).max(axis=-1)
    return cast("list[float]", differences.tolist())


def compare(
    found: mx.array, expected: mx.array, tolerance: float, position: int, reference: str
) -> None:
    """Compare rows with a reference.

    Args:
        found: `(T, n)`.
        expected: `(T, n)` of the same dtype.
        tolerance: Largest difference, in units of the largest expected number; 0 for equal bits.
        position: Of the first row in the sequence.
        reference: Where `expected` comes from, for the error.

    Raises:
        ContractError: At the first row that differs by more.
    """
    if found.shape != expected.shape or found.dtype != expected.dtype:
        what = f"{expected.dtype} {expected.shape} of {reference}"
        raise ContractError(f"{found.dtype} {found.shape} instead of {what}", position=position)
    if bool(mx.array_equal(found, expected)):
        return
    limit = tolerance * cast(float, mx.abs(expected.astype(mx.float32)).max().item())
    for row, distance in enumerate(distances(found, expected)):
        if not distance <= limit:
            raise ContractError(f"{distance} from those of {reference}", position=position + row)


@final
class ModelHarness:
    """A model, a random sequence, and the logits that the model should return for it.

    Args:
        model: Under test.
        stock: The model of mlx-lm that it drives, whose cold prefill is the reference. Without
            one, the reference is a cold prefill by the model itself.
        tolerance: How far logits may be off, in units of the largest. 0 on the CPU.
        length: Tokens of the sequence.
        oracle: Returns the logits `(T, vocabulary)` of a sequence, if the reference is no cold
            prefill.

    Attributes:
        sequence: Token ids.
    """

    def __init__(
        self,
        model: SpeculativeModel,
        stock: StockModel | None = None,
        tolerance: float = 0.0,
        *,
        length: int = 160,
        oracle: Callable[[Sequence[int]], mx.array] | None = None,
    ) -> None:
        rng = random.Random(0)
        self.model = model
        self.stock = stock
        self.tolerance = tolerance
        self.sequence: list[int] = [rng.randrange(model.vocab_size) for _ in range(length)]
        self._oracle = oracle or self.cold_prefill
        prefill = f"a cold prefill by {'the model itself' if stock is None else STOCK}"
        self._reference = prefill if oracle is None else "the given oracle"
        self._expected: mx.array | None = None

    def expected(self, start: int, stop: int) -> mx.array:
        """The logits that the model should return after tokens `start` to `stop`."""
        if self._expected is None:
            self._expected = self._oracle(self.sequence)
            mx.eval(self._expected)
        return self._expected[start:stop]

    def cold_prefill(self, sequence: Sequence[int]) -> mx.array:
        """Logits `(T, vocabulary)` of a sequence in one forward over empty caches."""
        if self.stock is None:
            return feed(self.model, sequence, self.model.make_cache())
        return self.stock(mx.array([sequence], dtype=mx.uint32), cache=self.stock_caches())[0]

    def stock_caches(self) -> list[object]:
        """Empty caches of mlx-lm's own types."""
        return [cache.hand_back() for cache in self.model.make_cache()]

    def compare(self, found: mx.array, start: int, tolerance: float | None = None) -> None:
        """Compare logits with those of the sequence.

        Args:
            found: `(T, vocabulary)`.
            start: Position of the first row.
            tolerance: Instead of the harness's own.

        Raises:
            ContractError: They differ.
        """
        limit = self.tolerance if tolerance is None else tolerance
        compare(found, self.expected(start, start + found.shape[0]), limit, start, self._reference)

    def wrong(self, start: int, count: int) -> list[int]:
        """`count` tokens from position `start`, each different from the sequence's."""
        return [(id_ + 1) % self.model.vocab_size for id_ in self.sequence[start : start + count]]


@final
class ModelRun:
    """Caches of a model that hold the start of the sequence, and possibly wrong tokens after it.

    Args:
        harness: The model and the sequence.
        prompt: Number of tokens to feed first, in one block.

    Attributes:
        caches: The caches.
        length: Tokens of the sequence in them, including those to be replayed.
        rounds: Number of blocks fed.
    """

    def __init__(self, harness: ModelHarness, prompt: int = 0) -> None:
        self.harness = harness
        self.caches: list[Rollbackable] = harness.model.make_cache()
        self.length: int = 0
        self.rounds: int = 0
        if prompt:
            self.feed(prompt)

    def start(self) -> None:
        """Start recording."""
        for cache in self.caches:
            cache.start_speculation()

    def feed(self, right: int, wrong: int = 0) -> Forward:
        """Feed one block.

        Args:
            right: Number of tokens that continue the sequence. Their logits are compared.
            wrong: Number of wrong tokens after those, which the caller rolls back.

        Returns:
            The output of the forward.

        Raises:
            ContractError: The logits of the right tokens differ.
        """
        harness, start = self.harness, self.length
        tokens = [*harness.sequence[start : start + right], *harness.wrong(start + right, wrong)]
        with at_step(self.rounds, start):
            out = harness.model.forward(mx.array([tokens], dtype=mx.uint32), self.caches)
            if right:
                harness.compare(out.logits[0, :right], start)
        self.length += right
        self.rounds += 1
        return out

    def trim(self, n: int) -> None:
        """Trim `n` wrong tokens, layer by layer as mlx-lm does.

        Raises:
            ContractError: A layer trimmed another number.
        """
        with at_step(self.rounds, self.length):
            trimmed = [cache.trim(n) for cache in self.caches]
            if trimmed != [n] * len(trimmed):
                raise ContractError(f"the layers trimmed {trimmed} tokens instead of {n}")

    def can_trim(self, n: int) -> bool:
        """Whether every layer can trim `n` tokens."""
        return all(cache.can_trim(n) for cache in self.caches)


def refuses(cache: Rollbackable, n: int) -> bool:
    """Whether a cache refuses to trim `n` tokens."""
    try:
        cache.trim(n)
    except RewindError:
        return True
    return False
