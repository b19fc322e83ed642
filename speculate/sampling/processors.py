"""Logits processors: who may see a row that is not sure to be text, and who starts anew."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Final, Self, final

import mlx.core as mx
from typing_extensions import Protocol, runtime_checkable

from speculate.errors import OptionError
from speculate.sampling.penalties import Processor

PURE_MODULES: Final = ("mlx_lm.sample_utils", "speculate.sampling.penalties")
"""Where functions come from that are known to keep no state."""


@runtime_checkable
class ForkableProcessor(Protocol):
    """A logits processor that keeps state, and can be copied with it.

    It is called once for each emitted token, in order, and for nothing else.
    """

    def __call__(self, tokens: mx.array, logits: mx.array, /) -> mx.array:
        """Process one row.

        Args:
            tokens: `(n,)`, the whole text so far, prompt included.
            logits: `(1, vocabulary)`.

        Returns:
            `(1, vocabulary)`.
        """

    def fork(self) -> Self:
        """A copy that goes on from the same state and shares nothing that changes."""


@final
class Processors:
    """A chain of processors: the options' own first, then the caller's.

    Args:
        own: Pure functions, which any row may be shown to.
        given: The caller's.

    Raises:
        OptionError: A processor is an object that may keep state and cannot be forked.
    """

    def __init__(self, own: Sequence[Processor], given: Sequence[Processor] = ()) -> None:
        for processor in given:
            if not _plain(processor) and not isinstance(processor, ForkableProcessor):
                raise OptionError(
                    f"logits processor {type(processor).__name__} is an object, which may keep "
                    "state, and has no fork() to copy it. Add fork(), or pass a plain function."
                )
        self._given: list[Processor] = [*own, *given]
        self._fresh = [_forked(processor) for processor in self._given]
        self._chain = self._given
        self._texts = 0

    @property
    def pure(self) -> bool:
        """Whether a row may be shown before it is sure to be text, and for nothing."""
        return all(_plain(p) and p.__module__ in PURE_MODULES for p in self._chain)

    def restart(self) -> None:
        """The next text starts from the state that the processors were given in.

        The first text works on the caller's own objects, later ones on copies.
        """
        if self._texts > 0:
            self._chain = [_forked(processor) for processor in self._fresh]
        self._texts += 1

    def __len__(self) -> int:
        return len(self._chain)

    def apply(self, tokens: mx.array, logits: mx.array) -> mx.array:
        """Process one row `(1, vocabulary)` with the text `tokens` `(n,)` before it."""
        for processor in self._chain:
            logits = processor(tokens, logits)
        return logits


def _forked(processor: Processor) -> Processor:
    return processor.fork() if isinstance(processor, ForkableProcessor) else processor


def _plain(processor: Processor) -> bool:
    return isinstance(processor, types.FunctionType | types.BuiltinFunctionType)
