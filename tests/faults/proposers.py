"""Faults in proposers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, cast

import mlx.core as mx

from speculate import DraftModel, MTPChain, PromptLookup, SpeculativeModel
from speculate.proposers import draft_model
from speculate.proposers._chain import Backlog
from speculate.protocols import Commit, Draft, DraftSampler, DraftScore, Forecast, Proposer
from speculate.testing import ProposerTests, ToyModel
from tests.faults.planting import Patch, fault
from tests.proposers.test_unknown_ids import Strict


class ToyTests(ProposerTests):
    """Tests `part`."""

    part: ClassVar[Callable[[], Proposer]]

    def make_proposer(self) -> Proposer:
        return type(self).part()


class Delegating:
    """Delegates to a draft model."""

    suite = ToyTests

    def __init__(self) -> None:
        self.inner: Proposer = DraftModel(ToyModel(1))

    @property
    def name(self) -> str:
        return self.inner.name

    def attach(self, target: SpeculativeModel, /) -> None:
        self.inner.attach(target)

    def begin(self, position: int, history: Sequence[int] = (), /) -> None:
        self.inner.begin(position, history)

    def position(self) -> int:
        return self.inner.position()

    def commit(self, commit: Commit, /) -> None:
        self.inner.commit(commit)

    def propose(self, last_token: mx.array, limit: int, choose: DraftSampler, /) -> Draft:
        return self.inner.propose(last_token, limit, choose)

    def settle(self) -> None:
        self.inner.settle()


class Lookup:
    """Drafts what followed the previous occurrence of the last token."""

    suite = ToyTests
    name = "lookup"

    def __init__(self) -> None:
        self.begin(0)

    def attach(self, target: SpeculativeModel, /) -> None:
        """Accept any model."""

    def begin(self, position: int, history: Sequence[int] = (), /) -> None:
        self.skipped = position
        self.sequence: list[int] = []

    def position(self) -> int:
        return self.skipped + len(self.sequence)

    def commit(self, commit: Commit, /) -> None:
        self.sequence += commit.ids

    def propose(self, last_token: mx.array, limit: int, choose: DraftSampler, /) -> Draft:
        return Draft(mx.array([*self.after(cast(int, last_token.item()), limit)], dtype=mx.uint32))

    def after(self, token: int, limit: int) -> Sequence[int]:
        """Ids to draft."""
        places = [place for place, other in enumerate(self.sequence) if other == token]
        return self.sequence[places[-1] + 1 :][:limit] if places else []

    def settle(self) -> None:
        """Nothing to settle, since it has no cache."""


@fault(
    "A head is fed the prompt without the row where two chunks meet.",
    caught_by="test_a_prompt_may_be_committed_in_any_chunks",
)
class ChunksLoseARow(Delegating):
    def __init__(self) -> None:
        self.inner = MTPChain()

    def commit(self, commit: Commit, /) -> None:
        if commit.verdict is None and len(commit.ids) > 1:
            hidden = mx.concatenate([commit.hidden[:, :-1], 0 * commit.hidden[:, -1:]], axis=1)
            commit = Commit(commit.tokens, hidden, None, commit.ids, commit.bonus)
        self.inner.commit(commit)


@fault(
    "`begin` keeps the previous sequence, and the new one is looked up in it.",
    caught_by="test_begin_resets_everything",
)
class BeginResetsNothing(Lookup):
    def begin(self, position: int, history: Sequence[int] = (), /) -> None:
        self.skipped = position - len(getattr(self, "sequence", []))
        self.sequence: list[int] = getattr(self, "sequence", [])


@fault(
    "A draft is longer than the limit.",
    caught_by="test_drafts_are_ids_within_the_limit",
)
class DraftsMoreThanTheLimit(Lookup):
    def propose(self, last_token: mx.array, limit: int, choose: DraftSampler, /) -> Draft:
        return super().propose(last_token, limit + 2, choose)


@fault(
    "A draft is padded with -1.",
    caught_by="test_drafts_are_ids_within_the_limit",
)
class DraftsArePaddedWithMinusOne(Lookup):
    def propose(self, last_token: mx.array, limit: int, choose: DraftSampler, /) -> Draft:
        found = super().propose(last_token, limit, choose).tokens.astype(mx.int32)
        return Draft(mx.concatenate([found, mx.full((limit - found.shape[0],), -1, mx.int32)]))


@fault(
    "The forecast of a lookup that finds nothing has a negative bucket.",
    caught_by="test_forecasts_depend_on_the_sequence_alone",
)
class ForecastsANegativeBucket(Delegating):
    def __init__(self) -> None:
        self.inner = self.lookup = PromptLookup()

    @property
    def free(self) -> bool:
        return True

    def forecast(self) -> Forecast:
        found = self.lookup.forecast()
        return found if found.length else Forecast(-1, 0)

    def scores(self) -> Sequence[DraftScore]:
        return self.lookup.scores()


@fault(
    "A token is drawn from `mx.random` where a lookup finds nothing.",
    caught_by="test_global_random_state_is_unchanged",
)
class DraftsRandomTokens(Lookup):
    def after(self, token: int, limit: int) -> Sequence[int]:
        found = super().after(token, limit)
        return found or cast("list[int]", mx.random.randint(0, 64, (1,)).tolist())


@fault(
    "Tokens accepted from other proposers are not added to the sequence.",
    caught_by="test_drafts_depend_on_the_sequence_alone",
)
class CommitsOfOthersAreIgnored(Lookup):
    def commit(self, commit: Commit, /) -> None:
        if commit.verdict is None or commit.verdict.proposer == self.name:
            super().commit(commit)
        else:
            self.skipped += len(commit.ids)


@fault(
    "Only one draft score is counted per round.",
    caught_by="test_forecasts_depend_on_the_sequence_alone",
)
class ScoresDependOnTheRounds(Delegating):
    def __init__(self) -> None:
        self.inner = self.lookup = PromptLookup()

    @property
    def free(self) -> bool:
        return True

    def forecast(self) -> Forecast:
        return self.lookup.forecast()

    def scores(self) -> Sequence[DraftScore]:
        return self.lookup.scores()[:1]


@fault(
    "A draft model is fed ids that it does not have.",
    caught_by="test_drafts_depend_on_the_sequence_alone",
)
class UnknownIdsAreFed:
    class suite(ProposerTests):
        def make_proposer(self) -> Proposer:
            return DraftModel(Strict(ToyModel(1, vocab_size=52)))

    @staticmethod
    def plant(patch: Patch) -> None:
        def anything(model: SpeculativeModel, ids: Iterable[int]) -> list[int]:
            return list(ids)

        patch.setattr(draft_model, "clamp_ids", anything)


@fault(
    "Sampled drafts carry no distribution, as if they were certain.",
    caught_by="test_sampled_drafts_carry_the_distribution_of_choose",
)
class DistributionsAreDropped(Delegating):
    def propose(self, last_token: mx.array, limit: int, choose: DraftSampler, /) -> Draft:
        return Draft(super().propose(last_token, limit, choose).tokens)


@fault(
    "Each drafted token carries the distribution of the next one.",
    caught_by="test_sampled_drafts_carry_the_distribution_of_choose",
)
class DistributionsAreOneTokenEarly(Delegating):
    def propose(self, last_token: mx.array, limit: int, choose: DraftSampler, /) -> Draft:
        draft = super().propose(last_token, limit, choose)
        return Draft(draft.tokens, [*draft.logprobs[1:], *draft.logprobs[:1]])


@fault(
    "The backlog is never cleared.",
    caught_by="test_the_backlog_is_reported_and_cleared",
)
class TheBacklogIsNeverCleared(Lookup):
    waiting = 0

    def commit(self, commit: Commit, /) -> None:
        super().commit(commit)
        self.waiting += commit.tokens.shape[0]

    def backlog(self) -> int:
        return self.waiting


@fault(
    "Tokens of rounds without a draft are lost, and the next draft is based on a wrong sequence.",
    caught_by="test_drafts_depend_on_the_sequence_alone",
)
class RoundsWithoutADraftAreLost(Delegating):
    def commit(self, commit: Commit, /) -> None:
        if commit.verdict is None and len(commit.ids) == 1:
            hidden = commit.hidden
            commit = Commit(mx.zeros_like(commit.tokens), hidden, None, [0], commit.bonus)
        super().commit(commit)


@fault(
    "Rejected drafts remain in the sequence that is looked up.",
    caught_by="test_drafts_depend_on_the_sequence_alone",
)
class RejectedDraftsAreRemembered(Lookup):
    def __init__(self) -> None:
        super().__init__()
        self.drafted: list[int] = []

    def after(self, token: int, limit: int) -> Sequence[int]:
        sequence = self.sequence
        self.sequence = [*sequence, *self.drafted]
        found = super().after(token, limit)
        self.sequence = sequence
        self.drafted += found[:1]
        return found


@fault(
    "`settle` does not roll back the draft.",
    caught_by="test_settle_discards_the_draft_and_nothing_else",
)
class SettleKeepsTheDraft(Delegating):
    def settle(self) -> None:
        draft = self.inner
        assert isinstance(draft, DraftModel)
        draft._in_flight, draft._backlog = 0, Backlog()


@fault(
    "The last token of a fully accepted draft is never fed.",
    caught_by="test_drafts_depend_on_the_sequence_alone",
)
class TheLastAcceptedTokenIsNotFed(Delegating):
    def commit(self, commit: Commit, /) -> None:
        verdict = commit.verdict
        if verdict is not None and verdict.proposer == self.name and verdict.accepted > 1:
            self.inner.commit(commit)
            draft = self.inner
            assert isinstance(draft, DraftModel)
            draft._backlog = Backlog()
        else:
            self.inner.commit(commit)


@fault(
    "The position does not count accepted tokens.",
    caught_by="test_drafts_depend_on_the_sequence_alone",
)
class ThePositionIgnoresAcceptedTokens(Lookup):
    lost = 0

    def begin(self, position: int, history: Sequence[int] = (), /) -> None:
        super().begin(position, history)
        self.lost = 0

    def commit(self, commit: Commit, /) -> None:
        super().commit(commit)
        self.lost += 0 if commit.verdict is None else commit.verdict.accepted

    def position(self) -> int:
        return super().position() - self.lost
