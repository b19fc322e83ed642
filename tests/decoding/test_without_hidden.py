"""A model that returns no hidden states: who needs them is refused by name, all others draft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import mlx.core as mx
import pytest

from speculate import Decoder, DraftModel, Fixed, MTPChain, PromptLookup, SpeculateError
from speculate.protocols import Commit, Forward, Proposer
from tests.support import reference
from tests.support.mtp_heads import with_head
from tests.support.recording import PassingModel, WatchedProposer

NEEDS = r"^Bare returns no hidden states, which a proposer that reads Commit\.hidden needs"


@final
class Bare(PassingModel):
    """A model whose forward returns logits alone."""

    def forward(
        self, tokens: mx.array, cache: Sequence[object], /, *, taps: Sequence[int] = ()
    ) -> Forward:
        return Forward(self.inner.forward(tokens, cache).logits, model="Bare")


class Reading(WatchedProposer):
    """A proposer that reads hidden states."""

    def __init__(self) -> None:
        super().__init__(PromptLookup())

    def commit(self, commit: Commit, /) -> None:
        super().commit(commit)
        assert commit.hidden.shape[:2] == (1, commit.tokens.shape[0])


def forward() -> Forward:
    model = Bare(reference.get("dense").model)
    return model.forward(mx.array([[1, 2, 3]]), model.make_cache())


@pytest.mark.parametrize("rows", [0, 2])
def test_hidden_states_that_are_not_there_are_named_with_the_model(rows: int) -> None:
    out = forward().after(rows)
    assert not out.has_hidden
    assert out.taps is None
    with pytest.raises(SpeculateError, match=NEEDS):
        _ = out.hidden


def test_a_commit_without_them_has_everything_else() -> None:
    commit = Commit.of(forward(), [1, 2], bonus=9)
    assert (list(commit.ids), commit.tokens.tolist(), commit.bonus) == ([1, 2], [1, 2], 9)
    with pytest.raises(SpeculateError, match=NEEDS):
        _ = commit.hidden
    with pytest.raises(SpeculateError, match=r"^Bare returns no taps, .*Commit\.taps"):
        _ = commit.taps


def test_a_commit_has_the_rows_of_its_tokens_alone() -> None:
    model = reference.get("dense").model
    out = model.forward(mx.array([[1, 2, 3]]), model.make_cache())
    assert out.has_hidden
    assert mx.array_equal(Commit.of(out, [1, 2]).hidden, out.hidden[:, :2])


@pytest.mark.parametrize(
    "proposer",
    [PromptLookup(), DraftModel(reference.get("small_dense").model)],
    ids=lambda p: p.name,
)
def test_proposers_that_do_not_need_them_draft(proposer: Proposer) -> None:
    caches = reference.stock_caches("dense")
    decoder = Decoder(Bare(reference.get("dense").model), Fixed(proposer, 3))
    tokens = list(decoder.generate(reference.PROMPT, 40, caches))
    reference.check_tokens("dense", reference.PROMPT, tokens)
    assert decoder.stats.draft_tokens > 0
    reference.check_holds("dense", caches, [*reference.PROMPT, *reference.ids_of(tokens)])


@pytest.mark.parametrize("proposer", [Reading(), MTPChain()], ids=lambda p: p.name)
def test_a_proposer_that_needs_them_raises_before_anything_is_fed(proposer: Proposer) -> None:
    caches = reference.stock_caches("qwen3_5")
    decoder = Decoder(Bare(with_head("qwen3_5").model), Fixed(proposer, 3))
    with pytest.raises(SpeculateError, match=NEEDS):
        list(decoder.generate(reference.PROMPT, 5, caches))
    reference.check_holds("qwen3_5", caches, [])


def test_a_proposer_that_reads_them_where_they_are_drafts() -> None:
    decoder = Decoder(reference.get("dense").model, Fixed(Reading(), 3))
    reference.check_tokens("dense", reference.PROMPT, list(decoder.generate(reference.PROMPT, 8)))
