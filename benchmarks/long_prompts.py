"""Decoding far into a text: the prompt is taken in once, and every choice has its turns."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from copy import deepcopy
from itertools import islice, pairwise
from typing import Final, cast, final

import attrs
import mlx.core as mx
from mlx_lm.generate import generate_step
from mlx_lm.models import qwen3_5

import speculate as sp
from benchmarks.clock import now
from benchmarks.pair import Pair
from benchmarks.rotation import Choice, Rotation
from speculate.loading import stock_of

DEPTHS: Final = (1, 2, 3, 4, 5)
STOCK, OFF = "mlx-lm", "off"
TOKENS: Final = 24
"""That mlx-lm decodes before our turns, and again after them."""


@final
@attrs.frozen
class AfterPrompt:
    """What came out after one prompt.

    Attributes:
        rates: Tokens a second of each choice.
        tokens: Tokens a round of each.
    """

    rates: dict[str, float]
    tokens: dict[str, float]


def decode_after(pair: Pair, prompt: Sequence[int], turns: int) -> AfterPrompt:
    """Let every choice have its turns after a long prompt."""
    mtp, draft = sp.MTPChain(), sp.DraftModel(pair.draft)
    choices = {OFF: Choice(None, 0)}
    choices |= {f"mtp {depth}": Choice(mtp, depth) for depth in DEPTHS}
    choices |= {f"draft {depth}": Choice(draft, depth) for depth in (2, 4)}
    rotation = Rotation(choices, turns)
    decoder = sp.Decoder(pair.target, rotation)
    cache: list[object] = []
    cache += pair.target.make_cache()
    list(decoder.generate(prompt[:-1], max_tokens=0, prompt_cache=cache))
    stock = generate_step(
        mx.array([prompt[-1]]),
        cast(qwen3_5.Model, stock_of(pair.target)),
        mx.default_stream(mx.default_device()),
        max_tokens=1_000_000,
        prompt_cache=deepcopy(cache),
    )
    before = _rate(stock)
    for _ in decoder.generate(prompt[-1:], max_tokens=-1, prompt_cache=cache):
        if rotation.done:
            break
    rates = {STOCK: (before + _rate(stock)) / 2}
    tokens = {STOCK: 1.0}
    for name, rounds in rotation.rounds.items():
        tokens[name] = statistics.fmean(round.emitted for round in rounds)
        rates[name] = tokens[name] / statistics.median(round.seconds for round in rounds)
    return AfterPrompt(rates, tokens)


def _rate(steps: Iterator[object]) -> float:
    """Median rate of some tokens."""
    clock = [now() for _ in islice(steps, TOKENS + 1)]
    mx.synchronize()
    return 1 / statistics.median(after - before for before, after in pairwise(clock))
