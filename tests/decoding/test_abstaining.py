"""Proposers that are asked, and have nothing to say."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from speculate import Adaptive, Decoder, MTPChain, SpeculativeModel
from speculate.protocols import Commit, Costs, Draft, DraftSampler
from speculate.testing import RecordingObserver, ScheduledStrategy
from tests.support import reference
from tests.support.mtp_heads import with_knowing_head


class Abstaining:
    """A lookup of somebody else's, which does not tell beforehand that it has nothing."""

    name = "mute"

    def attach(self, target: SpeculativeModel, /) -> None:
        """Drafts for any model."""

    def begin(self, position: int, history: Sequence[int] = (), /) -> None:
        self._position = position

    def position(self) -> int:
        return self._position

    def commit(self, commit: Commit, /) -> None:
        self._position += commit.tokens.shape[0]

    def propose(self, last_token: mx.array, limit: int, choose: DraftSampler, /) -> Draft:
        return Draft(mx.zeros((0,), dtype=mx.uint32))

    def settle(self) -> None:
        """Has no cache."""


def test_one_that_always_abstains_lets_others_draft() -> None:
    text = [*reference.PROMPT, *reference.truth("dense", reference.PROMPT, 40)]
    model, _ = with_knowing_head("dense", text)
    costs = Costs(0, {1: 0.01, 9: 0.0101}, {"mute": 0.0, "mtp": 0.0})
    strategy = Adaptive(Abstaining(), MTPChain(), costs=costs, clock="fixed")
    decoder = Decoder(model.model, strategy)
    tokens = list(decoder.generate(reference.PROMPT, 40))
    reference.check_tokens("dense", reference.PROMPT, tokens)
    assert sum(token.proposer == "mtp" for token in tokens) > 10


def test_a_round_says_who_was_asked_though_nothing_was_drafted() -> None:
    script = reference.scripted("dense", reference.PROMPT, 8, reference.always(None))
    observer = RecordingObserver()
    strategy = ScheduledStrategy([(script, 3), (Abstaining(), 2), (script, 0), (script, 3)])
    list(
        Decoder(reference.get("dense").model, strategy, observer=observer).generate(
            reference.PROMPT, 7
        )
    )
    found = [(round.planned_proposer, round.proposer, round.drafted) for round in observer.rounds]
    # In the last round one token is left, and there is nobody to ask.
    expected = [("scripted", "scripted", 3), ("mute", None, 0), (None, None, 0), (None, None, 0)]
    assert found == expected
    assert [round.planned for round in observer.rounds] == [3, 2, 0, 3]
