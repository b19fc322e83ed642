"""`ProposerTests`: the contracts of `Proposer` and its optional protocols, for their authors."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import Final, cast, final

import mlx.core as mx

from speculate._mx import row_differences, to_ints
from speculate.decoding.proposer_pool import validated_draft
from speculate.protocols import (
    Commit,
    Draft,
    DraftSampler,
    DraftToken,
    Proposer,
    SpeculativeModel,
    SupportsBacklog,
    SupportsForecast,
    Verdict,
)
from speculate.strategies.fixed import checked_backlog, checked_forecast, checked_scores
from speculate.testing.contract import InjectedError, at_step, contract, require, same_random_state
from speculate.testing.lossless import assert_lossless
from speculate.testing.toy import ToyHead, ToyModel

LENGTH: Final = 90
"""Tokens of the sequence."""

DEPTH: Final = 4
"""Tokens of most drafts."""

OTHER: Final = "another proposer"
"""Name of the proposer whose drafts are committed besides those under test."""


def greedy(logits: mx.array, index: int) -> DraftToken:
    """A `choose` that returns the most likely token."""
    return DraftToken(mx.argmax(logits, axis=-1))


@final
class RecordingChoose:
    """A greedy `choose` that records its arguments: logits `(1, vocabulary)`, and indices."""

    def __init__(self) -> None:
        self.rows: list[mx.array] = []
        self.indices: list[int] = []

    def __call__(self, logits: mx.array, index: int, /) -> DraftToken:
        self.rows.append(logits)
        self.indices.append(index)
        return greedy(logits, index)


def near_tie(
    found: Sequence[int], expected: Sequence[int], rows: Sequence[mx.array], tolerance: float
) -> int | None:
    """Index of the first drafted id that differs, if rounding explains the difference.

    Each expected id was picked from logits `(1, vocabulary)`, which may be off by `tolerance`, in
    units of the largest.
    """
    for index, (one, other, row) in enumerate(zip(found, expected, rows, strict=False)):
        if one != other:
            gap = cast(float, (row[0, other] - row[0, one]).item())
            largest = cast(float, mx.abs(row).max().item())
            # Both logits may be off.
            return index if gap < 2 * tolerance * largest else None
    return None


@final
class ProposerHarness:
    """The proposers and the target of a suite, and what is committed: ids and hidden states."""

    def __init__(self, suite: ProposerTests) -> None:
        self.make: Callable[[], Proposer] = suite.make_proposer
        self.target: SpeculativeModel = suite.target()
        self._tolerance = suite.tolerance
        self.sequence: list[int] = repetitive(self.target.vocab_size)
        tokens = mx.array([self.sequence], dtype=mx.uint32)
        self.hidden: mx.array = self.target.forward(tokens, self.target.make_cache()).hidden
        mx.eval(self.hidden)
        self._drafts: dict[tuple[int, int], tuple[list[int], list[mx.array]]] = {}

    def check_draft(self, run: ProposerRun, start: int = 0) -> None:
        """Compare a draft with that of a fresh proposer, after one commit of the same sequence."""
        key = (start, run.position)
        if key not in self._drafts:
            choose = RecordingChoose()
            fresh = ProposerRun(self, run.position - start, start=start)
            _, drafted = fresh.draft(DEPTH, choose)
            mx.eval(choose.rows)
            self._drafts[key] = drafted, choose.rows
        expected, rows = self._drafts[key]
        choose = RecordingChoose()
        _, drafted = run.draft(DEPTH, choose)
        # After a near tie that rounding decided, two chains continue with different tokens.
        count = near_tie(drafted, expected, rows, self._tolerance)
        with at_step(run.rounds, run.position):
            same = drafted[:count] == expected[:count]
            require(same, f"drafts {drafted}, and a fresh proposer {expected}")
            stop = None if count is None else count + 1
            found, rows = choose.rows[:stop], rows[:stop]
            largest = max((cast(float, mx.abs(row).max().item()) for row in rows), default=0.0)
            same = len(found) == len(rows) and all(
                max(row_differences(*pair)) <= self._tolerance * largest
                for pair in zip(found, rows, strict=True)
            )
            require(same, "picks from other logits than a fresh proposer")


def repetitive(vocab_size: int) -> list[int]:
    """A sequence of `LENGTH` tokens that repeats a phrase, with occasional other tokens."""
    rng = random.Random(0)
    phrase = [rng.randrange(vocab_size) for _ in range(13)]
    sequence = [*islice(cycle(phrase), LENGTH)]
    for position in range(7, LENGTH, 11):
        sequence[position] = rng.randrange(vocab_size)
    return sequence


@final
class ProposerRun:
    """A fresh proposer with a prompt, part way through the sequence after so many commits."""

    def __init__(
        self, harness: ProposerHarness, prompt: int = 0, chunk: int = 100, *, start: int = 0
    ) -> None:
        self._harness = harness
        self.proposer: Proposer = harness.make()
        self.rounds: int = 0
        self.position: int = start
        self.proposer.attach(harness.target)
        self.begin(start)
        self.commit_prompt(prompt, chunk)

    def begin(self, position: int) -> None:
        """Call `begin`, and continue the sequence from there."""
        self.proposer.begin(position)
        self.position = position

    def commit(self, count: int, verdict: Verdict | None = None, *, known: bool = True) -> None:
        """Commit the next tokens of the sequence; whether the one after them is known already."""
        start, stop = self.position, self.position + count
        sequence, hidden = self._harness.sequence, self._harness.hidden[:, start:stop]
        ids = sequence[start:stop]
        tokens = mx.array(ids, dtype=mx.uint32)
        bonus = sequence[stop] if known and stop < len(sequence) else None
        with at_step(self.rounds, start):
            self.proposer.commit(Commit(tokens, hidden, verdict, ids, bonus))
            self.require_position(stop, f"a commit up to {stop}")
        self.position = stop
        self.rounds += 1

    def require_position(self, expected: int, after: str) -> None:
        """Check what the proposer reports after a call."""
        with at_step(self.rounds, self.position):
            found = self.proposer.position()
            require(found == expected, f"reports position {found} after {after}")

    def commit_prompt(self, count: int, chunk: int = 100) -> None:
        """Commit a prompt of `count` tokens in chunks."""
        while count > 0:
            self.commit(min(chunk, count), known=False)
            count -= chunk

    def last_token(self) -> mx.array:
        return mx.array([self._harness.sequence[self.position]], dtype=mx.uint32)

    def draft(self, depth: int, choose: DraftSampler = greedy) -> tuple[Draft, list[int]]:
        """Ask for a draft and its ids. Check it as a decoder does, and that the ids are known."""
        with at_step(self.rounds, self.position):
            draft = self.proposer.propose(self.last_token(), depth, choose)
            ids = to_ints(validated_draft(self.proposer, draft, depth).tokens)
            known = all(0 <= id_ < self._harness.target.vocab_size for id_ in ids)
            require(known, f"drafts {ids}, which are not all ids of the target")
        return draft, ids

    def round(self, depth: int, right: int) -> None:
        """Run a round with a draft of this proposer, and commit its accepted tokens.

        `right` of them are right if the proposer calls `choose`.
        """
        sequence = [*self._harness.sequence[self.position + 1 :], *[0] * depth]

        def guided(logits: mx.array, index: int) -> DraftToken:
            return DraftToken(mx.array([(sequence[index] + (index >= right)) % logits.shape[1]]))

        _, drafted = self.draft(depth, guided)
        wrong = [a != b for a, b in zip(drafted, sequence, strict=False)]
        accepted = [*wrong, True].index(True)
        self.commit(1 + accepted, Verdict(self.proposer.name, len(drafted), accepted))


class ProposerTests(ABC):
    """Tests a proposer: derive a class `Test...` and say how to make a proposer.

    Attributes:
        tolerance: How far logits may be off, in units of the largest. 0 on the CPU.
    """

    tolerance: float = 0.0

    @abstractmethod
    def make_proposer(self) -> Proposer:
        """Return a fresh proposer."""

    def target(self) -> SpeculativeModel:
        """Return the model to draft for: a `ToyModel` with a head, unless overridden."""
        return ToyModel(head=ToyHead())

    def harness(self) -> ProposerHarness:
        """Return what the contracts drive."""
        return ProposerHarness(self)

    @contract
    def test_drafts_are_ids_within_the_limit(self) -> None:
        """At every position and depth a draft has at most `limit` ids; it may be empty."""
        run = ProposerRun(self.harness())
        for position in range(12):
            for depth in (1, 1 + 2 * position % 9):
                choose = RecordingChoose()
                run.draft(depth, choose)
                run.commit(1 + position % 4, known=False)
                with at_step(run.rounds, run.position):
                    expected = list(range(len(choose.indices)))
                    require(choose.indices == expected, f"calls choose for {choose.indices}")
                    one_row = all(r.ndim == 2 and r.shape[0] == 1 for r in choose.rows)
                    require(one_row, "passes more than one row of logits to choose")

    @contract
    def test_drafts_depend_on_the_sequence_alone(self) -> None:
        """A draft depends neither on rejected drafts nor on who drafted before."""
        harness = self.harness()
        for seed in range(3):
            rng = random.Random(seed)
            run = ProposerRun(harness, rng.choice((1, 5, 12)), rng.choice((1, 3, 100)))
            while run.position < 50:
                for _ in range(rng.randint(1, 6)):
                    _random_round(run, rng)
                harness.check_draft(run)
                run.commit(1, Verdict(run.proposer.name, DEPTH, 0))

    @contract
    def test_a_prompt_may_be_committed_in_any_chunks(self) -> None:
        """A prompt committed token by token, in chunks or whole leads to the same draft."""
        harness = self.harness()
        for length in (1, 2, 11, 30):
            for chunk in {1, 3, 4, length - 1, length} - {0}:
                harness.check_draft(ProposerRun(harness, length, chunk))

    @contract
    def test_settle_discards_the_draft_and_nothing_else(self) -> None:
        """`settle` may come during a draft, twice, or first; the sequence continues after it."""
        harness = self.harness()
        run = ProposerRun(harness)
        run.proposer.settle()
        run.commit_prompt(9)
        for known in (True, False):
            run.draft(DEPTH)
            run.proposer.settle()
            run.proposer.settle()
            run.require_position(run.position, "settle")
            run.commit(3, known=known)
            harness.check_draft(run)
            run.commit(1, Verdict(run.proposer.name, DEPTH, 0))
            run.proposer.settle()
        harness.check_draft(run)

    @contract
    def test_begin_resets_everything(self) -> None:
        """`begin` starts another sequence at any position, during a draft or not."""
        harness = self.harness()
        run = ProposerRun(harness, 30)
        for start in (0, 7, 0, 21):
            run.draft(DEPTH)
            run.begin(start)
            run.require_position(start, f"begin({start})")
            run.commit_prompt(12, 5)
            run.round(DEPTH, 2)
            harness.check_draft(run, start)
            run.commit(1, Verdict(run.proposer.name, DEPTH, 0))

    @contract
    def test_sampled_drafts_carry_the_distribution_of_choose(self) -> None:
        """A token picked by `choose` comes with the distribution that `choose` returned for it."""
        run = ProposerRun(self.harness(), 30)
        returned: list[DraftToken] = []

        def choose(logits: mx.array, index: int) -> DraftToken:
            token = mx.array([(7 * index + 3) % logits.shape[1]], dtype=mx.uint32)
            returned.append(DraftToken(token, mx.full(logits.shape, -float(index))))
            return returned[-1]

        draft, ids = run.draft(DEPTH, choose)
        pairs = zip(ids, draft.logprobs or [None] * len(ids), strict=True)
        for index, (id_, given) in enumerate(pairs):
            with at_step(index, run.position + 1 + index):
                same = [choice for choice in returned if choice.logprobs is given]
                require(given is None or bool(same), "has a distribution that choose did not give")
                own = given is None or same[0].token.item() == id_
                require(own, f"drafts {id_} with the distribution of another token")
                if returned:
                    require(given is not None, f"drops the distribution that {id_} is drawn from")

    @contract
    def test_global_random_state_is_unchanged(self) -> None:
        """Drafting draws neither from `mx.random` nor from `random`."""
        run = ProposerRun(self.harness())
        with same_random_state():
            run.commit_prompt(20)
            run.round(DEPTH, 2)
            run.draft(DEPTH)
            run.proposer.settle()

    @contract
    def test_a_failed_draft_leaves_the_proposer_in_step(self) -> None:
        """If `choose` raises at any token, the next drafts are those of the sequence."""
        harness = self.harness()
        for failing in range(DEPTH):
            run = ProposerRun(harness, 20)

            def choose(logits: mx.array, index: int, failing: int = failing) -> DraftToken:
                if index == failing:
                    raise InjectedError
                return greedy(logits, index)

            try:
                run.proposer.propose(run.last_token(), DEPTH, choose)
            except InjectedError:
                run.proposer.settle()
            run.commit(2)
            harness.check_draft(run)

    @contract
    def test_forecasts_depend_on_the_sequence_alone(self) -> None:
        """Forecasts and draft scores do not depend on how the sequence was cut into rounds."""
        harness = self.harness()
        found = []
        for step in (1, 3, 7):
            run = ProposerRun(harness)
            if not isinstance(run.proposer, SupportsForecast):
                return
            run.commit_prompt(20)
            scores: dict[tuple[int, int], tuple[int, int]] = {}
            while run.position < LENGTH - 10:
                count = min(step, LENGTH - 10 - run.position)
                run.commit(count, Verdict(OTHER, step, step - 1))
                checked_forecast(run.proposer, run.proposer.forecast())
                for score in checked_scores(run.proposer, run.proposer.scores()):
                    compared, right = scores.get((score.bucket, score.position), (0, 0))
                    total = (compared + score.compared, right + score.right)
                    scores[score.bucket, score.position] = total
            found.append((run.proposer.forecast(), scores))
        require(found[0] == found[1] == found[2], "differ with the rounds of the sequence")

    @contract
    def test_the_backlog_is_reported_and_cleared(self) -> None:
        """The backlog is at most what was committed, and 0 after a draft."""
        harness = self.harness()
        for read in (1, 30, 60):
            run = ProposerRun(harness)
            if not isinstance(run.proposer, SupportsBacklog):
                return
            run.commit_prompt(read)
            backlog = checked_backlog(run.proposer, run.proposer.backlog())
            require(backlog <= read, f"reports a backlog of {backlog} after {read} tokens")
            harness.check_draft(run)
            run.commit(1, Verdict(run.proposer.name, DEPTH, 0))
            backlog = run.proposer.backlog()
            require(not backlog, f"reports a backlog of {backlog} after a draft")

    @contract
    def test_output_is_that_of_plain_decoding(self) -> None:
        """Speculative decoding with this proposer is lossless."""
        assert_lossless(self.target(), [self.make_proposer()], tokens=20, tolerance=self.tolerance)


def _random_round(run: ProposerRun, rng: random.Random) -> None:
    """Run a round with a draft of its own, of another proposer or of none, or settle."""
    depth = rng.choice((1, 2, 4, 7))
    right = rng.randint(0, depth)
    match rng.randrange(5):
        case 0 | 1:
            run.round(depth, right)
        case 2:
            run.commit(1 + right, Verdict(OTHER, depth, right))
        case 3:
            run.commit(1, known=rng.random() < 0.5)
        case _:
            run.proposer.settle()
