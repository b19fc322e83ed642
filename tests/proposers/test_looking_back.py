"""Lookups in earlier turns that are in the cache, and that only the caller knows of."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

import mlx.core as mx
import pytest

import speculate as sp
from speculate.proposers import draft_model
from speculate.protocols import Forward, Proposer, Round
from speculate.testing import ScheduledStrategy, ScriptedProposer
from tests.support import reference, tiny
from tests.support.recording import PassingModel, WatchedProposer
from tests.support.table_models import TableModel

TURN: Final = (11, 12, 13, 14, 15, 16, 17, 18)
"""An earlier turn."""

QUOTES: Final = (21, 22, 11, 12, 13)
"""A prompt that quotes its beginning."""


def filled(name: str) -> list[object]:
    """A cache that holds the turn, filled elsewhere."""
    caches = reference.stock_caches(name)
    list(sp.Decoder(reference.get(name).model, sp.Off()).generate(TURN, 0, caches))
    return caches


def drafted(
    name: str, lookup: Proposer, caches: list[object], history: tuple[int, ...]
) -> list[Round]:
    """The rounds of the next turn, whose text is checked."""
    rounds: list[Round] = []
    decoder = sp.Decoder(reference.get(name).model, sp.Fixed(lookup, 4), observer=rounds.append)
    tokens = list(decoder.generate(QUOTES, 12, caches, history=history))
    reference.check_tokens(name, (*TURN, *QUOTES), tokens)
    reference.check_holds(name, caches, [*TURN, *QUOTES, *(token.id for token in tokens)])
    return rounds


@pytest.mark.parametrize("name", reference.PROMISED)
def test_what_an_earlier_turn_said_is_found_where_the_caller_says_what_it_was(name: str) -> None:
    lookup = sp.PromptLookup(min_ngram=3)
    rounds = drafted(name, lookup, filled(name), TURN)
    assert rounds[0].drafted == 4
    assert not drafted(name, sp.PromptLookup(min_ngram=3), filled(name), ())[0].drafted


def test_it_stays_in_step_with_the_text_however_much_it_was_given() -> None:
    for history in (TURN, TURN[-3:], (1, 2, 3, *TURN)):
        lookup, caches = sp.PromptLookup(), filled("qwen3_5")
        drafted("qwen3_5", lookup, caches, history)
        assert lookup.position() == len(TURN) + len(QUOTES) + 12


class Listener(WatchedProposer):
    """Records where sequences begin for it, and the ids of earlier turns that it receives."""

    def __init__(self) -> None:
        super().__init__(sp.PromptLookup())
        self.received: list[tuple[int, list[int]]] = []

    def begin(self, position: int, history: Sequence[int] = (), /) -> None:
        super().begin(position, history)
        if history:
            self.received.append((position, list(history)))


class Begun(WatchedProposer):
    """Records every start of a sequence."""

    def __init__(self, name: str) -> None:
        super().__init__(ScriptedProposer((), vocab_size=tiny.VOCAB, name=name))
        self.begun: list[tuple[int, list[int]]] = []

    def begin(self, position: int, history: Sequence[int] = (), /) -> None:
        super().begin(position, history)
        self.begun.append((position, list(history)))


def test_a_decoder_that_was_there_itself_is_not_given_the_text_again() -> None:
    lookup = Listener()
    decoder = sp.Decoder(reference.get("qwen3_5").model, sp.Fixed(lookup, 4))
    caches = reference.stock_caches("qwen3_5")
    list(decoder.generate(TURN, 0, caches))
    list(decoder.generate(QUOTES, 4, caches, history=TURN))
    assert lookup.received == []
    list(decoder.generate(QUOTES, 4, filled("qwen3_5"), history=TURN))
    assert lookup.received == [(len(TURN), list(TURN))]


def test_every_proposer_begins_with_what_the_caller_says_of_earlier_turns() -> None:
    # As many ids as the cache holds, fewer, more and none: they are passed on as they are.
    for history in (TURN, TURN[-3:], (1, 2, 3, *TURN), ()):
        one, other = Begun("one"), Begun("other")
        strategy = ScheduledStrategy([(one, 2), (other, 3)])
        decoder = sp.Decoder(reference.get("dense").model, strategy)
        list(decoder.generate(QUOTES, 4, filled("dense"), history=history))
        assert one.begun == other.begun == [(len(TURN), list(history))]


def test_a_turn_that_was_given_up_and_is_tried_again_still_knows_the_earlier_one() -> None:
    name, tries, rounds = "qwen3_5", iter([True]), list[Round]()

    def failing(done: int, total: int) -> None:
        if next(tries, False):
            raise RuntimeError("given up")

    lookup, caches = sp.PromptLookup(min_ngram=3), filled(name)
    decoder = sp.Decoder(
        reference.get(name).model,
        sp.Fixed(lookup, 4),
        observer=rounds.append,
        prompt_progress_callback=failing,
    )
    with pytest.raises(RuntimeError, match="given up"):
        list(decoder.generate(QUOTES, 12, caches, history=TURN))
    tokens = list(decoder.generate(QUOTES, 12, caches, history=TURN))
    reference.check_tokens(name, (*TURN, *QUOTES), tokens)
    assert rounds[0].drafted == 4


# A draft model reads them, with caches of its own.


LONG: Final = tuple(random.Random(1).choices(range(tiny.VOCAB), k=90))
"""An earlier turn of more tokens than share a forward with a draft."""

TURNS: Final = ((*TURN, *QUOTES), LONG)


def resumed(
    name: str, draft: sp.SpeculativeModel, turn: Sequence[int], history: Sequence[int]
) -> sp.Stats:
    """What a turn takes over a cache that was filled elsewhere; its output is checked."""
    caches = reference.stock_caches(name)
    list(sp.Decoder(reference.get(name).model, sp.Off()).generate(turn, 0, caches))
    decoder = sp.Decoder(reference.get(name).model, sp.Fixed(sp.DraftModel(draft), 4))
    tokens = list(decoder.generate(reference.SECOND, 18, caches, history=history))
    text = (*turn, *reference.SECOND)
    reference.check_tokens(name, text, tokens)
    reference.check_holds(name, caches, [*text, *reference.ids_of(tokens)])
    return decoder.stats


@pytest.mark.parametrize("turn", TURNS, ids=len)
@pytest.mark.parametrize("name", ["dense", "qwen3_5", "gpt_oss"])
def test_a_draft_model_drafts_over_a_loaded_cache_as_over_its_own(
    name: str, turn: tuple[int, ...]
) -> None:
    model = reference.get(name).model
    live = sp.Decoder(model, sp.Fixed(sp.DraftModel(model), 4))
    caches = reference.stock_caches(name)
    list(live.generate(turn, 0, caches))
    list(live.generate(reference.SECOND, 18, caches))
    # The target drafts for itself: who has read the same text is always right.
    assert live.stats.accepted_tokens == live.stats.draft_tokens > 0
    for history in (turn, (1, 2, *turn)):
        stats = resumed(name, model, turn, history)
        assert (stats.rounds, stats.accepted_tokens) == (
            live.stats.rounds,
            live.stats.accepted_tokens,
        )


@pytest.mark.parametrize("name", ["dense", "qwen3_5"])
def test_a_history_that_lies_or_is_cut_short_costs_acceptance_alone(name: str) -> None:
    model = reference.get(name).model
    true = resumed(name, model, LONG, LONG)
    for history in (LONG[::-1], LONG[:-1], LONG[1:], (7,), ()):
        received = resumed(name, model, LONG, history)
        assert received.accepted_tokens < true.accepted_tokens


def test_a_history_with_ids_that_the_draft_lacks_is_read_as_a_live_text_is() -> None:
    assert max(LONG) >= 60
    seen: list[list[int]] = []
    for history in (LONG, [min(id_, 59) for id_ in LONG]):
        small = Counted(TableModel(mx.zeros((60, 60))))
        resumed("dense", small, LONG, history)
        assert small.widths[0] > len(LONG)
        seen.append(small.widths)
    assert seen[0] == seen[1]


def test_a_history_is_read_when_a_draft_is_asked_for_and_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(draft_model, "FLUSH_CHUNK", 32)
    draft = Counted(reference.get("small_dense").model)
    resumed("dense", draft, LONG, LONG)
    # The prompt's first tokens come after the turn's, and the draft's first step after them.
    assert draft.widths[:4] == [32, 32, 28, 1]
    proposer = sp.DraftModel(draft)
    draft.widths.clear()
    proposer.attach(reference.get("dense").model)
    proposer.begin(len(LONG), LONG)
    assert proposer.position() == proposer.backlog() == len(LONG)
    assert draft.widths == []


def test_caches_that_the_caller_gave_are_read_up_to_the_text() -> None:
    model = reference.get("dense").model
    for held in (0, 30, len(LONG)):
        own = model.make_cache()
        if held:
            model.forward(mx.array([LONG[:held]]), own)
        caches = reference.stock_caches("dense")
        list(sp.Decoder(model, sp.Off()).generate(LONG, 0, caches))
        decoder = sp.Decoder(model, sp.Fixed(sp.DraftModel(model, cache=own), 4))
        tokens = list(decoder.generate(reference.SECOND, 18, caches, history=LONG))
        reference.check_tokens("dense", (*LONG, *reference.SECOND), tokens)
        assert decoder.stats.accepted_tokens == decoder.stats.draft_tokens > 0
        assert {cache.length() for cache in own} == {len(LONG) + len(reference.SECOND) + 18}


class Counted(PassingModel):
    """Notes how wide its forwards are."""

    def __init__(self, model: sp.SpeculativeModel) -> None:
        super().__init__(model)
        self.widths: list[int] = []

    def forward(
        self, tokens: mx.array, cache: Sequence[object], /, *, taps: Sequence[int] = ()
    ) -> Forward:
        self.widths.append(tokens.shape[1])
        return self.inner.forward(tokens, cache)
