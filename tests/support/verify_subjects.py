"""A tiny model to verify, and mistakes to find in it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Final, cast, final

import mlx.core as mx
from mlx import nn

from speculate import PromptLookup, SpeculativeModel, verify
from speculate.models.adapter import StockAdapter
from speculate.protocols import Forward, MTPHead, Rollbackable, StockModel
from speculate.verify import Drafter, Result, VerificationTarget
from tests.support import tiny
from tests.support.mtp_heads import with_head
from tests.support.reference import Tiny, adapted, get

TEXT: Final = random.Random(3).choices(range(tiny.VOCAB), k=50)
TOKENS: Final = 6

Found = dict[str, list[Result]]
"""By check."""


@cache
def hybrid() -> Tiny:
    """A Qwen3.5 of two layers, with a head."""
    return with_head("shallow")


def drafters(model: SpeculativeModel) -> list[Drafter]:
    """All there are."""
    heads = [] if model.head is None else [verify.head_drafter()]
    return [
        *heads,
        verify.model_drafter(get("small_dense").model),
        verify.proposer_drafter(PromptLookup),
    ]


def subject(
    model: SpeculativeModel, stock: StockModel | None = None, tokens: int = TOKENS
) -> VerificationTarget:
    return VerificationTarget(model, TEXT, drafters=drafters(model), stock=stock, tokens=tokens)


def verified(subject: VerificationTarget, *checks: str) -> Found:
    """The results of all checks, or of some."""
    found: Found = {}
    for case in verify.cases(subject):
        if not checks or case.check in checks:
            found.setdefault(case.check, []).append(case.run())
    return found


def outcomes(found: Found) -> dict[str, set[str]]:
    return {check: {result.outcome for result in results} for check, results in found.items()}


def wrong(found: Found) -> set[str]:
    """Checks that find a bug."""
    return {check for check, seen in outcomes(found).items() if "BUG" in seen}


class Around(StockAdapter):
    """An adapter of its own for a model that another one drives."""

    def __init__(self, inner: SpeculativeModel, eos: Iterable[int] = ()) -> None:
        assert isinstance(inner, StockAdapter)
        super().__init__(inner.stock, head=inner.head, eos_token_ids=eos)
        self.inner = inner

    @property
    def vocab_size(self) -> int:
        return self.inner.vocab_size

    def forward_stock(self, tokens: mx.array, cache: Sequence[object]) -> Forward:
        return self.inner.forward_stock(tokens, cache)


@final
class ShiftedWindow(Around):
    """Reads the convolution's window one row late."""

    def forward_stock(self, tokens: mx.array, cache: Sequence[object]) -> Forward:
        for layer in cache:
            if "Arrays" in type(layer).__name__:
                slots = cast("list[mx.array | None]", layer)
                if slots[0] is not None:
                    slots[0] = mx.roll(slots[0], 1, 1)
        return self.inner.forward_stock(tokens, cache)


@final
class InBlocks(Around):
    """Does something to the logits of blocks, and nothing to those of single rows."""

    def __init__(self, inner: SpeculativeModel, change: Callable[[mx.array], mx.array]) -> None:
        super().__init__(inner)
        self.change = change

    def forward(
        self, tokens: mx.array, cache: Sequence[object], /, *, taps: Sequence[int] = ()
    ) -> Forward:
        out = super().forward(tokens, cache)
        if tokens.shape[1] == 1:
            return out
        return Forward(self.change(out.logits), out.hidden)


def next_numbers(logits: mx.array) -> mx.array:
    """Every other logit moved to the next number that there is."""
    odd = mx.arange(logits.shape[-1], dtype=mx.uint32) % 2
    return (logits.view(mx.uint32) + odd).view(logits.dtype)


def second_best(logits: mx.array) -> mx.array:
    """What is most likely becomes least likely."""
    best = mx.argmax(logits, axis=-1, keepdims=True)
    return mx.where(mx.arange(logits.shape[-1]) == best, -100.0, logits)


@final
class Forgetful:
    """A head that is blind in some of its passes, counted over all texts."""

    def __init__(self, head: MTPHead, blind: Callable[[int], bool]) -> None:
        self.head = head
        self.blind = blind
        self.passes = 0

    def make_cache(self, position: int = 0) -> list[Rollbackable]:
        return self.head.make_cache(position)

    def step(self, hidden: mx.array, tokens: mx.array, cache: list[Rollbackable], /) -> Forward:
        self.passes += 1
        seen = mx.zeros_like(hidden) if self.blind(self.passes) else hidden
        return self.head.step(seen, tokens, cache)


def with_ties() -> Tiny:
    """A model to which each even id and the odd one behind it are always as good as each other."""
    module = tiny.hybrid(num_hidden_layers=2)
    matrix = cast(nn.Linear, cast(nn.Module, module["language_model"])["lm_head"])
    matrix.weight = mx.repeat(matrix.weight[::2], 2, axis=0)
    return adapted(module)
