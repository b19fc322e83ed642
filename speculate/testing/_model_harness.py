"""Drives a model over one sequence in `ModelTests`, and compares logits with a cold prefill."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import FunctionType
from typing import Final, cast, final

import mlx.core as mx
from mlx.nn.layers.base import Module

from speculate._mx import row_differences
from speculate.decoding.window import Window
from speculate.protocols import Forward, Rollbackable, SpeculativeModel, StockModel
from speculate.testing.contract import ContractError, InjectedError, at_step, require

STOCK: Final = "mlx-lm's own model"
"""How errors name the reference model."""


def feed(model: SpeculativeModel, tokens: Sequence[int], caches: Sequence[object]) -> mx.array:
    """Run one forward and return its logits, `(T, vocabulary)`."""
    logits = model.forward(mx.array([list(tokens)], dtype=mx.uint32), caches).logits[0]
    mx.eval(logits)
    return logits


def compare(
    found: mx.array, expected: mx.array, tolerance: float, position: int, reference: str
) -> None:
    """Compare rows `(T, n)`, the first at `position`, with those of a named reference.

    The tolerance is in units of the largest expected number; 0 demands equal bits.
    """
    if found.shape != expected.shape or found.dtype != expected.dtype:
        what = f"{expected.dtype} {expected.shape} of {reference}"
        raise ContractError(f"{found.dtype} {found.shape} instead of {what}", position=position)
    if bool(mx.array_equal(found, expected)):
        return
    limit = tolerance * cast(float, mx.abs(expected.astype(mx.float32)).max().item())
    for row, distance in enumerate(row_differences(found, expected)):
        if not distance <= limit:
            raise ContractError(f"{distance} from those of {reference}", position=position + row)


@final
class ModelHarness:
    """A model, a random sequence of ids, and the logits that the model should return for it.

    The reference is the oracle if there is one, and else a cold prefill by the model of mlx-lm,
    or without one by the model itself. Logits may be off by `tolerance`, in units of the largest.
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

    def cold_prefill(self, sequence: Sequence[int]) -> mx.array:
        """Logits `(T, vocabulary)` of a sequence in one forward over empty caches."""
        if self.stock is None:
            return feed(self.model, sequence, self.model.make_cache())
        return self.stock(mx.array([sequence], dtype=mx.uint32), cache=self.stock_caches())[0]

    def stock_caches(self) -> list[object]:
        """Empty caches of mlx-lm's own types."""
        return [cache.release() for cache in self.model.make_cache()]

    def compare(self, found: mx.array, start: int, tolerance: float = 0.0) -> None:
        """Compare logits `(T, vocabulary)` with those of the sequence from `start` on."""
        if self._expected is None:
            self._expected = self._oracle(self.sequence)
            mx.eval(self._expected)
        expected = self._expected[start : start + found.shape[0]]
        compare(found, expected, max(self.tolerance, tolerance), start, self._reference)

    def wrong(self, start: int, count: int) -> list[int]:
        """`count` tokens from position `start`, each different from the sequence's."""
        return [(id_ + 1) % self.model.vocab_size for id_ in self.sequence[start : start + count]]


@final
class ModelRun:
    """Caches of a model that hold the start of the sequence, and possibly wrong tokens after it.

    `length` is the number of tokens of the sequence, including those to be replayed. The prompt
    is fed first, in one block; `rounds` counts the blocks.
    """

    def __init__(self, harness: ModelHarness, prompt: int = 0) -> None:
        self.harness = harness
        self.caches: list[Rollbackable] = harness.model.make_cache()
        self.length: int = 0
        self.rounds: int = 0
        if prompt:
            self.feed(prompt)

    def start(self) -> None:
        for cache in self.caches:
            cache.start_speculation()

    def feed(self, right: int, wrong: int = 0) -> Forward:
        """Feed one block: tokens of the sequence, whose logits are compared, then wrong ones.

        The caller rolls the wrong ones back.
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

    def round(self, window: Window, right: int, wrong: int = 0) -> None:
        """Feed one block in a window, and keep its right tokens."""
        self.feed(right, wrong)
        window.keep(right)

    def trim(self, n: int) -> None:
        """Trim `n` wrong tokens, layer by layer as mlx-lm does."""
        with at_step(self.rounds, self.length):
            trimmed = [cache.trim(n) for cache in self.caches]
            done = trimmed == [n] * len(trimmed)
            require(done, f"the layers trimmed {trimmed} tokens instead of {n}")

    def fail(self, width: int, layer: int) -> None:
        """Run a forward over wrong tokens that fails when one layer writes to its cache."""
        caches: list[object] = [*self.caches]
        caches[layer] = FailingCache(self.caches[layer])
        tokens = mx.array([self.harness.wrong(self.length, width)], dtype=mx.uint32)
        with at_step(self.rounds, self.length), suppress(InjectedError):
            mx.eval(self.harness.model.forward(tokens, caches).logits)
            require(False, f"layer {layer} did not use the cache that it was given")

    def can_trim(self, n: int) -> bool:
        """Whether every layer can trim `n` tokens."""
        return all(cache.can_trim(n) for cache in self.caches)


@final
class FailingCache:
    """Stands in for a cache and raises when a layer writes to it."""

    def __init__(self, cache: Rollbackable) -> None:
        self._cache = cache

    def __getattr__(self, name: str) -> object:
        if name in ("update_and_fetch", "advance"):
            raise InjectedError
        return cast(object, getattr(self._cache, name))

    def __getitem__(self, index: int) -> object:
        entry = cast(Sequence[object], self._cache)[index]
        # A cache that holds several caches returns one of them.
        return FailingCache(entry) if isinstance(entry, Rollbackable) else entry

    def __setitem__(self, index: int, value: object) -> None:
        raise InjectedError


def parts_of(stock: StockModel) -> dict[str, object]:
    """List the attributes of a model, of its modules, and of their classes, by name."""
    found: dict[str, object] = {}
    for name, module in cast(Module, stock).named_modules():
        kind, entries = type(module), cast("dict[str, object]", module).items()
        found[f"class of {name or 'the model'}"] = kind
        found |= {f"{name}.{key}": value for key, value in vars(module).items()}
        found |= {f"{name}[{key}]": value for key, value in entries}
        found |= {f"{kind.__qualname__}.{key}": value for key, value in vars(kind).items()}
    return {name: value for name, value in found.items() if "__annot" not in name}


def foreign_methods(stock: StockModel) -> Iterator[str]:
    """Yield methods of a model's classes whose code is outside the package of the class."""
    for kind in {type(module) for _, module in cast(Module, stock).named_modules()}:
        package = sys.modules[kind.__module__.partition(".")[0]]
        home: Sequence[str] = vars(package).get("__path__", [""])
        for name, method in vars(kind).items():
            if isinstance(method, FunctionType):
                file = method.__code__.co_filename
                # Methods that dataclasses generate are in no file.
                if not file.startswith(("<", *home)):
                    yield f"{kind.__qualname__}.{name}"
