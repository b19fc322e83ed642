"""Models driven over one text, and compared at every token with a cold prefill of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final, cast, final

import mlx.core as mx

from speculate.errors import RewindError
from speculate.protocols import Forward, Rollbackable, SpeculativeModel, StockModel
from speculate.testing.broken import BrokenLawError, at

STOCK: Final = "mlx-lm's own model"


def feed(model: SpeculativeModel, tokens: Sequence[int], caches: Sequence[object]) -> mx.array:
    """Logits `(T, vocabulary)` of one forward."""
    logits = model.forward(mx.array([list(tokens)], dtype=mx.uint32), caches).logits[0]
    mx.eval(logits)
    return logits


def logprobs(logits: mx.array) -> mx.array:
    """Log-probabilities in float32, along the last axis."""
    logits = logits.astype(mx.float32)
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def distances(found: mx.array, expected: mx.array) -> list[float]:
    """How far apart the rows of two arrays `(T, n)` are, each at its worst."""
    apart = mx.abs(found.astype(mx.float32) - expected.astype(mx.float32)).max(axis=-1)
    return cast("list[float]", apart.tolist())


def compare(
    found: mx.array, expected: mx.array, tolerance: float, position: int, oracle: str
) -> None:
    """Compare rows `(T, n)` with what they ought to be.

    Args:
        found: As computed.
        expected: As it ought to be.
        tolerance: In units of the largest number; 0 for equal bits.
        position: In the text, of the first row.
        oracle: What gave the expected rows, in words.

    Raises:
        BrokenLawError: At the first row that is further off.
    """
    if found.shape != expected.shape or found.dtype != expected.dtype:
        raise BrokenLawError(
            f"{found.dtype} {found.shape} instead of {expected.dtype} {expected.shape} of {oracle}",
            position=position,
        )
    if bool(mx.array_equal(found, expected)):
        return
    most = tolerance * cast(float, mx.abs(expected.astype(mx.float32)).max().item())
    for row, apart in enumerate(distances(found, expected)):
        if not apart <= most:
            raise BrokenLawError(f"{apart} from those of {oracle}", position=position + row)


@final
class Driven:
    """A model, and what it ought to say of one random text.

    Args:
        model: Under test.
        stock: The model of mlx-lm that it drives. Its cold prefill is the oracle; that of
            the model itself if there is none.
        tolerance: How far logits may be off, in units of the largest. 0 on the CPU.
        length: Tokens of the text.
        oracle: Gives the logits `(T, vocabulary)` of a text, where that is no cold prefill.

    Attributes:
        text: Ids.
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
        dice = random.Random(0)
        self.model = model
        self.stock = stock
        self.tolerance = tolerance
        self.text: list[int] = [dice.randrange(model.vocab_size) for _ in range(length)]
        self._oracle = oracle or self._cold_prefill
        prefilled = f"a cold prefill by {'the model itself' if stock is None else STOCK}"
        self._named = prefilled if oracle is None else "the given oracle"
        self._expected: mx.array | None = None

    def expected(self, start: int, stop: int) -> mx.array:
        """Logits after tokens `start` to `stop` of the text, as they ought to be."""
        if self._expected is None:
            self._expected = self._oracle(self.text)
            mx.eval(self._expected)
        return self._expected[start:stop]

    def _cold_prefill(self, text: Sequence[int]) -> mx.array:
        if self.stock is None:
            return feed(self.model, text, self.model.make_cache())
        return self.stock(mx.array([text], dtype=mx.uint32), cache=self.stock_caches())[0]

    def stock_caches(self) -> list[object]:
        """Empty caches of mlx-lm's own types."""
        return [cache.hand_back() for cache in self.model.make_cache()]

    def compare(self, found: mx.array, start: int, tolerance: float | None = None) -> None:
        """Compare logits `(T, vocabulary)` of the text from token `start` on.

        Raises:
            BrokenLawError: They are off.
        """
        most = self.tolerance if tolerance is None else tolerance
        compare(found, self.expected(start, start + found.shape[0]), most, start, self._named)

    def wrong(self, start: int, count: int) -> list[int]:
        """Tokens that are not those of the text."""
        return [(id_ + 1) % self.model.vocab_size for id_ in self.text[start : start + count]]


@final
class Fed:
    """Caches of a model that hold the beginning of the text, and perhaps wrong tokens behind.

    Attributes:
        caches: The caches.
        length: Tokens of the text in them, or owed to them.
        rounds: Blocks that were fed.
    """

    def __init__(self, driven: Driven, prompt: int = 0) -> None:
        self.driven = driven
        self.caches: list[Rollbackable] = driven.model.make_cache()
        self.length: int = 0
        self.rounds: int = 0
        if prompt:
            self.feed(prompt)

    def feed(self, right: int, wrong: int = 0) -> Forward:
        """Feed one block of the text, and wrong tokens behind it which the caller takes back.

        Raises:
            BrokenLawError: The logits of the right tokens are off.
        """
        driven, start = self.driven, self.length
        tokens = [*driven.text[start : start + right], *driven.wrong(start + right, wrong)]
        with at(self.rounds, start):
            out = driven.model.forward(mx.array([tokens], dtype=mx.uint32), self.caches)
            if right:
                driven.compare(out.logits[0, :right], start)
        self.length += right
        self.rounds += 1
        return out

    def trim(self, n: int) -> None:
        """Take wrong tokens back, layer by layer as mlx-lm does.

        Raises:
            BrokenLawError: A layer took back another number.
        """
        with at(self.rounds, self.length):
            taken = [cache.trim(n) for cache in self.caches]
            if taken != [n] * len(taken):
                raise BrokenLawError(f"the layers took back {taken} tokens instead of {n}")

    def can_trim(self, n: int) -> bool:
        """Whether every layer can take so many back."""
        return all(cache.can_trim(n) for cache in self.caches)


def refused(cache: Rollbackable, n: int) -> bool:
    """Whether a cache refuses to take so many back."""
    try:
        cache.trim(n)
    except RewindError:
        return True
    return False
