"""Logits processors: mlx-lm's penalties and bias, and the caller's own processors."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Self, final

import mlx.core as mx
from typing_extensions import Protocol, runtime_checkable

from speculate.errors import OptionError
from speculate.sampling.options import Sampling

Processor = Callable[[mx.array, mx.array], mx.array]
"""mlx-lm's logits processor: tokens so far `(n,)`, logits `(1, vocabulary)` -> logits."""

STATELESS_MODULES: Final = ("mlx_lm.sample_utils", "speculate.sampling.processors")
"""Modules whose functions are known to keep no state."""


def penalties(options: Sampling) -> list[Processor]:
    """The processors requested by the options, in mlx-lm's order."""
    of_recent = (
        (_repetition, options.repetition_penalty, options.repetition_context_size),
        (_presence, options.presence_penalty, options.presence_context_size),
        (_frequency, options.frequency_penalty, options.frequency_context_size),
    )
    bias = [_bias(options.logit_bias)] if options.logit_bias else []
    return bias + [_of_recent(rule, size, context) for rule, size, context in of_recent if size]


def _bias(amounts: Mapping[int, float]) -> Processor:
    indices, values = mx.array(list(amounts)), mx.array(list(amounts.values()))

    def add_bias(tokens: mx.array, logits: mx.array) -> mx.array:
        return logits.at[:, indices].add(values.astype(logits.dtype))

    return add_bias


def _of_recent(
    rule: Callable[[mx.array, mx.array, float], mx.array], penalty: float, context: int
) -> Processor:
    def penalize(tokens: mx.array, logits: mx.array) -> mx.array:
        return rule(logits, tokens[-context:], penalty)

    return penalize


def _repetition(logits: mx.array, recent: mx.array, penalty: float) -> mx.array:
    old = logits[:, recent]
    new = mx.where(old < 0, old * penalty, old / penalty)
    return mx.put_along_axis(logits, recent[None], new, axis=1)


def _presence(logits: mx.array, recent: mx.array, penalty: float) -> mx.array:
    return mx.put_along_axis(logits, recent[None], logits[:, recent] - penalty, axis=1)


def _frequency(logits: mx.array, recent: mx.array, penalty: float) -> mx.array:
    return logits.at[:, recent].subtract(penalty)


@runtime_checkable
class ForkableProcessor(Protocol):
    """A logits processor with state that can be copied.

    It is called once for each emitted token, in order, and never for a rejected draft.
    """

    def __call__(self, tokens: mx.array, logits: mx.array, /) -> mx.array:
        """Process one row `(1, vocabulary)` that follows `tokens`, `(n,)`: prompt and output."""

    def fork(self) -> Self:
        """A copy with the same state that shares no mutable data with the original."""


@final
class Processors:
    """A chain of processors: the options' `own`, then those `given` by the caller.

    Raises:
        OptionError: A processor is an object that may keep state and has no `fork()`.
    """

    def __init__(self, own: Sequence[Processor], given: Sequence[Processor] = ()) -> None:
        for processor in given:
            if not _is_function(processor) and not isinstance(processor, ForkableProcessor):
                raise OptionError(
                    f"logits processor {type(processor).__name__} is an object, which may keep "
                    "state, and has no fork() to copy it. Add fork(), or pass a plain function."
                )
        self._chain = [*own, *given]
        self._fresh = [_forked(processor) for processor in self._chain]
        self._used = False

    @property
    def is_stateless(self) -> bool:
        """Whether processors may be called for rows that may turn out to be rejected."""
        return all(_is_function(p) and p.__module__ in STATELESS_MODULES for p in self._chain)

    def reset(self) -> None:
        """Start a sequence: the first one with the caller's own objects, others with copies."""
        if self._used:
            self._chain = [_forked(processor) for processor in self._fresh]
        self._used = True

    def __len__(self) -> int:
        return len(self._chain)

    def apply(self, tokens: mx.array, logits: mx.array) -> mx.array:
        """Process one row `(1, vocabulary)` that follows the sequence `tokens`, `(n,)`."""
        for processor in self._chain:
            logits = processor(tokens, logits)
        return logits


def _forked(processor: Processor) -> Processor:
    return processor.fork() if isinstance(processor, ForkableProcessor) else processor


def _is_function(processor: Processor) -> bool:
    return isinstance(processor, types.FunctionType | types.BuiltinFunctionType)
