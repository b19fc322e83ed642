"""What is counted of time: seconds, and the speedups that were expected and had."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from pytest import approx

from speculate import Adaptive, Decoder, Fixed, Off, Stats
from speculate.decoding import generation
from speculate.protocols import Costs, Plan, Proposer, Round
from tests.support import reference


def counted(*rounds: Round) -> Stats:
    stats = Stats()
    for round in rounds:
        stats.count(round)
    return stats


def drafted(
    seconds: float,
    emitted: int,
    predicted: float | None = None,
    plain: float | None = None,
    by: str = "mtp",
) -> Round:
    return Round(
        0, by, 3, 3, emitted - 1, emitted, False, seconds, 0, predicted, baseline_seconds=plain
    )


def plain(seconds: float, predicted: float | None = None, forecast: float | None = None) -> Round:
    return Round(0, None, 0, 0, 0, 1, False, seconds, 0, predicted, baseline_seconds=forecast)


def test_seconds_of_all_rounds_and_of_each_proposers() -> None:
    stats = counted(drafted(2.0, 3), plain(1.0), drafted(4.0, 1, by="lookup"), drafted(8.0, 2))
    assert stats.seconds == 15.0
    assert stats.total.seconds == 14.0
    assert {name: own.seconds for name, own in stats.by_proposer.items()} == {
        "mtp": 10.0,
        "lookup": 4.0,
    }
    assert stats.round_tokens == 7


def test_nothing_is_known_of_no_rounds_nor_of_rounds_that_took_no_time() -> None:
    for stats in (Stats(), counted(drafted(0.0, 2, 1.5)), counted(plain(0.0))):
        assert stats.plain_seconds is None
        assert stats.predicted_speedup is None
        assert stats.actual_speedup is None


def test_without_a_plain_step_there_is_no_speedup() -> None:
    stats = counted(drafted(2.0, 3), drafted(2.0, 1))
    assert stats.plain_seconds is None
    assert stats.actual_speedup is None


def test_rounds_without_drafts_time_a_plain_step() -> None:
    # 6 tokens, of which plain decoding would have taken 1.5 s each, in 9 s.
    stats = counted(drafted(3.0, 3), plain(1.0), plain(2.0), drafted(3.0, 1))
    assert stats.plain_seconds == approx(1.5)
    assert stats.actual_speedup == approx(6 * 1.5 / 9)


def test_plain_decoding_is_as_fast_as_plain_decoding() -> None:
    assert counted(plain(1.0), plain(5.0), plain(3.0)).actual_speedup == approx(1.0)


def test_what_the_strategy_knows_counts_more_than_what_was_seen() -> None:
    # 1 s over 3 tokens and 2 s over 1 token; the plain round that took 9 s was disturbed.
    stats = counted(drafted(2.0, 3, plain=1.0), plain(9.0), drafted(2.0, 1, plain=2.0))
    assert stats.plain_seconds == approx((3 * 1.0 + 1 * 2.0) / 4)
    assert stats.actual_speedup == approx(5 * 1.25 / 13)


def test_predictions_are_averaged_over_time() -> None:
    stats = counted(drafted(3.0, 3, 2.0), plain(1.0, 1.0), plain(100.0), drafted(1.0, 1, 1.5))
    assert stats.predicted_speedup == approx((3 * 2.0 + 1 * 1.0 + 1 * 1.5) / 5)


def test_predictions_that_come_true_are_the_actual_speedup() -> None:
    step, rounds = 0.5, [(3, 2.0), (1, 0.8), (4, 2.5), (1, 1.0)]
    stats = counted(*(drafted(n * step / rate, n, rate, step) for n, rate in rounds))
    assert stats.predicted_speedup == approx(stats.actual_speedup)


def test_the_adaptive_strategy_reports_what_it_expects() -> None:
    costs = Costs(0, {1: 0.25, 9: 0.25}, {"scripted": 0.0})
    rounds: list[Round] = []
    script = reference.scripted("dense", reference.PROMPT, 40, reference.always(None))
    strategy = Adaptive(script, clock="fixed", costs=costs)
    decoder = Decoder(reference.get("dense").model, strategy, observer=rounds.append)
    list(decoder.generate(reference.PROMPT, 30))
    assert {r.baseline_seconds for r in rounds} == {0.25}
    # Where nothing costs anything, the speedup that is expected is the tokens that are.
    assert all(
        r.predicted_speedup is not None and 1 <= r.predicted_speedup <= r.planned + 1
        for r in rounds
    )
    stats = decoder.stats
    assert stats.plain_seconds == approx(0.25)
    assert stats.actual_speedup == approx(30 * 0.25 / stats.seconds)
    assert stats.round_tokens == 30


def test_plain_decoding_of_a_model_has_a_speedup_of_one() -> None:
    decoder = Decoder(reference.get("dense").model, Off())
    list(decoder.generate(reference.PROMPT, 12))
    assert decoder.stats.seconds > 0
    assert decoder.stats.actual_speedup == approx(1.0)
    assert decoder.stats.predicted_speedup is None


class Telling:
    """Drafts in every round, and tells numbers that can be recognised."""

    def __init__(self, proposer: Proposer) -> None:
        self._proposer = proposer
        self._rounds = 0

    @property
    def proposers(self) -> Sequence[Proposer]:
        return (self._proposer,)

    def begin(self) -> None:
        """Start a sequence: nothing to reset."""

    def plan(self, remaining: int | None, /) -> Plan:
        self._rounds += 1
        return Plan(
            self._proposer, 2, predicted_speedup=self._rounds, baseline_seconds=self._rounds / 8
        )

    def observe(self, round: Round, /) -> None:
        """Nothing to learn."""


def test_a_round_has_what_its_own_plan_expected() -> None:
    rounds: list[Round] = []
    script = reference.scripted("dense", reference.PROMPT, 20, reference.always(1))
    decoder = Decoder(reference.get("dense").model, Telling(script), observer=rounds.append)
    list(decoder.generate(reference.PROMPT, 10))
    assert [r.predicted_speedup for r in rounds] == [1, 2, 3, 4, 5]
    assert [r.baseline_seconds for r in rounds] == [
        r.predicted_speedup / 8 for r in rounds if r.predicted_speedup
    ]


@pytest.mark.parametrize("depth", [0, 2])
def test_the_observers_own_time_is_not_the_rounds(
    depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, rounds = 0.0, list[Round]()

    def clock() -> float:
        nonlocal now
        now += 1.0
        return now

    def dawdle(round: Round, /) -> None:
        nonlocal now
        rounds.append(round)
        now += 1000.0

    monkeypatch.setattr(generation, "time", SimpleNamespace(perf_counter=clock))
    script = reference.scripted("dense", reference.PROMPT, 20, reference.always(0))
    decoder = Decoder(reference.get("dense").model, Fixed(script, depth), observer=dawdle)
    list(decoder.generate(reference.PROMPT, 5))
    assert len(rounds) == 5
    assert all(0 < r.seconds < 10 for r in rounds)
