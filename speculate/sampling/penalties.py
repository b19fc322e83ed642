"""mlx-lm's penalties and bias: pure functions of the newest tokens and one row of logits."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import mlx.core as mx

from speculate.sampling.options import Sampling

Processor = Callable[[mx.array, mx.array], mx.array]
"""mlx-lm's logits processor: tokens so far `(n,)`, logits `(1, vocabulary)` -> logits."""


def penalties(options: Sampling) -> list[Processor]:
    """The processors that the options ask for, in mlx-lm's order."""
    found: list[Processor] = []
    if options.logit_bias:
        found.append(_bias(options.logit_bias.keys(), options.logit_bias.values()))
    if options.repetition_penalty:
        found.append(_repetition(options.repetition_penalty, options.repetition_context_size))
    if options.presence_penalty:
        found.append(_presence(options.presence_penalty, options.presence_context_size))
    if options.frequency_penalty:
        found.append(_frequency(options.frequency_penalty, options.frequency_context_size))
    return found


def _bias(ids: Iterable[int], amounts: Iterable[float]) -> Processor:
    indices, values = mx.array(list(ids)), mx.array(list(amounts))

    def add_bias(tokens: mx.array, logits: mx.array) -> mx.array:
        return logits.at[:, indices].add(values.astype(logits.dtype))

    return add_bias


def _repetition(penalty: float, context: int) -> Processor:
    def punish(tokens: mx.array, logits: mx.array) -> mx.array:
        recent = tokens[-context:]
        old = logits[:, recent]
        new = mx.where(old < 0, old * penalty, old / penalty)
        return mx.put_along_axis(logits, recent[None], new, axis=1)

    return punish


def _presence(penalty: float, context: int) -> Processor:
    def punish(tokens: mx.array, logits: mx.array) -> mx.array:
        recent = tokens[-context:]
        return mx.put_along_axis(logits, recent[None], logits[:, recent] - penalty, axis=1)

    return punish


def _frequency(penalty: float, context: int) -> Processor:
    def punish(tokens: mx.array, logits: mx.array) -> mx.array:
        return logits.at[:, tokens[-context:]].subtract(penalty)

    return punish
