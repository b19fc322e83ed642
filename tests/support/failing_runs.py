"""A run in which any part can be told to fail at any of its calls."""

from __future__ import annotations

from collections import Counter
from typing import Final, Literal, final

import attrs
import mlx.core as mx
import pytest

from speculate import Decoder, DraftModel, MTPChain, SpeculativeModel
from speculate.protocols import Proposer, Rollbackable, Round
from speculate.sampling import acceptance
from speculate.testing import ScheduledStrategy
from tests.support import reference
from tests.support.mtp_heads import with_knowing_head
from tests.support.recording import (
    GuidedModel,
    Ticker,
    WatchedModel,
    WatchedProposer,
    WatchedStrategy,
)

Kind = Literal["draft", "head"]

COUNT: Final = 12
DEPTHS: Final = (3, 0, 2, 0, 0, 1, 4)
WRONG: Final = frozenset({8, 12, 15})
"""Positions of the text at which every draft is wrong: rounds accept 2, 1, ... of what they try."""

TARGET: Final = ("target", "target done")
OTHERS: Final = ("propose", "plan", "observe", "commit", "settle")
PLACES: Final = (
    *TARGET,
    *OTHERS,
    *(f"{place} done" for place in OTHERS),
    "observer",
    "progress",
    "most likely",
)
MOST_LIKELY: Final = acceptance.most_likely
OWN: Final = {"draft": ("draft", "draft done"), "head": ("head", "head done")}


@final
@attrs.frozen(eq=False)
class Failing:
    """A decoder whose parts all report to one ticker.

    Attributes:
        decoder: It.
        draft_cache: What was handed to the draft model; empty where a head drafts.
    """

    decoder: Decoder
    draft_cache: list[Rollbackable]


def build(name: str, kind: Kind, draft: str, ticker: Ticker, patch: pytest.MonkeyPatch) -> Failing:
    """A target with a draft model of its own cache, or with a head; all are watched."""
    text = [*reference.PROMPT, *reference.truth(name, reference.PROMPT, COUNT)]
    draft_cache: list[Rollbackable] = []
    model: SpeculativeModel
    inner: Proposer
    if kind == "draft":
        small = WatchedModel(reference.get(draft).model, ticker, "draft")
        draft_cache = small.make_cache()
        inner = DraftModel(GuidedModel(small, text, WRONG), cache=draft_cache)
        model = reference.get(name).model
    else:
        model = with_knowing_head(name, text, WRONG, ticker)[0].model
        inner = MTPChain()
    proposer = WatchedProposer(inner, ticker)
    strategy = WatchedStrategy(ScheduledStrategy([(proposer, k) for k in DEPTHS]), ticker)
    _watch_choices(ticker, patch)

    def observe(round: Round) -> None:
        ticker("observer")

    decoder = Decoder(
        WatchedModel(model, ticker),
        strategy,
        observer=observe,
        prefill_step_size=3,
        prompt_progress_callback=lambda done, total: ticker("progress"),
    )
    return Failing(decoder, draft_cache)


def _watch_choices(ticker: Ticker, patch: pytest.MonkeyPatch) -> None:
    """Every choice of a token, of the target's or of a draft, goes through one function."""

    def watched(logits: mx.array) -> mx.array:
        ticker("most likely")
        return MOST_LIKELY(logits)

    patch.setattr(acceptance, "most_likely", watched)


def calls(name: str, kind: Kind, draft: str, patch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each place is passed in a run in which nothing fails."""
    known = _CALLS.get((name, kind, draft))
    if known is not None:
        return known
    ticker = Ticker()
    failing = build(name, kind, draft, ticker, patch)
    tokens = list(failing.decoder.generate(reference.PROMPT, COUNT, reference.stock_caches(name)))
    reference.check_tokens(name, reference.PROMPT, tokens)
    assert 0 < failing.decoder.stats.accepted_tokens < failing.decoder.stats.draft_tokens
    _CALLS[name, kind, draft] = ticker.calls
    return ticker.calls


_CALLS: Final[dict[tuple[str, Kind, str], Counter[str]]] = {}
