"""Ways of decoding a text, ours and others', as streams of tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, cast

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.generate import generate_step, speculative_generate_step

import speculate as sp
from speculate import SpeculativeModel
from speculate.integrations import mlx_lm as shaped
from speculate.loading import stock_of
from speculate.protocols import Strategy

MANY: Final = 1_000_000
"""More tokens than anybody asks for."""

Stream = Iterator[tuple[int, bool]]
"""Ids, and for each whether it is an accepted draft."""

Way = Callable[[Sequence[int]], Stream]
"""Decodes behind a prompt, without end."""


def stock_plain(model: SpeculativeModel) -> Way:
    """mlx-lm's own decoding."""

    def decode(prompt: Sequence[int]) -> Stream:
        steps = generate_step(mx.array([*prompt]), _stock(model), _stream(), max_tokens=MANY)
        for token, _ in steps:
            yield cast(int, token), False

    return decode


def stock_drafted(model: SpeculativeModel, draft: SpeculativeModel, depth: int) -> Way:
    """mlx-lm's own speculative decoding."""

    def decode(prompt: Sequence[int]) -> Stream:
        steps = speculative_generate_step(
            mx.array([*prompt]),
            _stock(model),
            _stock(draft),
            _stream(),
            num_draft_tokens=depth,
            max_tokens=MANY,
        )
        for token, _, from_draft in steps:
            yield cast(int, token), from_draft

    return decode


def shaped_drafted(model: SpeculativeModel, draft: SpeculativeModel, depth: int) -> Way:
    """Ours, called as mlx-lm's speculative decoding is."""

    def decode(prompt: Sequence[int]) -> Stream:
        steps = shaped.speculative_generate_step(
            mx.array([*prompt]), model, draft, _stream(), num_draft_tokens=depth, max_tokens=MANY
        )
        for token, _, from_draft in steps:
            yield token, from_draft

    return decode


def ours(model: SpeculativeModel, make: Callable[[], Strategy | None]) -> Way:
    """Our decoder with a strategy of its own for each text."""

    def decode(prompt: Sequence[int]) -> Stream:
        decoder = sp.Decoder(model, make())
        for token in decoder.generate(prompt, max_tokens=MANY):
            yield token.id, token.from_draft

    return decode


def _stock(model: SpeculativeModel) -> Module:
    return cast(Module, stock_of(model))


def _stream() -> mx.Stream:
    return mx.default_stream(mx.default_device())
