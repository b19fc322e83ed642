"""A replay takes the rounds that a decoder would take, and hindsight is what fixed choices take."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest

import speculate as sp
from benchmarks.forcing import ForcedModel
from benchmarks.strategy.fixed_choices import ARMS, OFF, Arm, best, fixed_times, proposer_of
from benchmarks.strategy.machine import CURVES, Machine
from benchmarks.strategy.recording import Recording, recordings
from benchmarks.strategy.replay import Recorded, Replay
from speculate.protocols import Proposer, Round, Strategy

CURVE = CURVES["1.03/1.47/2.69"]


@pytest.fixture(scope="module")
def known() -> list[Recording]:
    return recordings()


def named(known: list[Recording], workload: str, request: int) -> Recording:
    return next(r for r in known if (r.workload, r.request) == (workload, request))


def decided(proposers: Sequence[Proposer]) -> Strategy:
    return sp.Adaptive(*proposers, clock="fixed", costs=Machine(CURVE).costs())


@pytest.mark.parametrize("workload", ["copy", "mixed"])
def test_choices_are_those_of_a_decoder(known: list[Recording], workload: str) -> None:
    recording = named(known, workload, 1)
    real = sp.MTPChain(), sp.DraftModel(sp.load_demo("draft")[0]), sp.PromptLookup()
    model = ForcedModel(sp.load_demo()[0], [*recording.prompt, *recording.output])
    rounds: list[Round] = []
    decoder = sp.Decoder(model, decided(real), observer=rounds.append)
    prompt = [*recording.prompt, recording.output[0]]
    list(decoder.generate(prompt, max_tokens=len(recording.output) - 1))

    machine = Machine(CURVE)
    times = [0.0]
    for round in rounds:
        times += [times[-1] + machine.time(round.proposer, round.drafted)] * round.emitted
    replayed = decided([Recorded("mtp"), Recorded("draft"), sp.PromptLookup()])
    assert Replay(recording, replayed, machine).run() == times
    assert len({round.proposer for round in rounds}) >= 2


@pytest.mark.parametrize("arm", [OFF, Arm("mtp", 3), Arm("draft", 8), Arm("lookup", 12)], ids=str)
def test_fixed_choices_take_what_their_replay_takes(known: list[Recording], arm: Arm) -> None:
    for recording in known[::5]:
        proposer = proposer_of(arm, [Recorded("mtp"), Recorded("draft"), Recorded("lookup")])
        strategy = sp.Fixed(proposer, arm.depth) if proposer else sp.Off()
        machine = Machine(CURVE)
        assert Replay(recording, strategy, machine).run() == fixed_times(recording, machine, arm)


def test_lookups_are_recorded_where_they_were_right(known: list[Recording]) -> None:
    recording = named(known, "copy", 0)
    assert max(recording.right["lookup"]) == 12
    for place, right in enumerate(recording.right["lookup"]):
        assert right <= min(recording.length["lookup"][place], len(recording.output) - 1 - place)


def test_the_best_choice_is_the_one_that_takes_least(known: list[Recording]) -> None:
    machine = Machine(CURVE)
    for recording in known[::7]:
        found = best(recording, machine)
        assert found.time == min(fixed_times(recording, machine, arm)[-1] for arm in ARMS)
        assert found.time == fixed_times(recording, machine, found.arm)[-1]


def test_nothing_pays_where_nothing_is_right(known: list[Recording]) -> None:
    wrong = named(known, "adversarial", 0)
    nothing = {name: [0] * len(right) for name, right in wrong.right.items()}
    found = best(attrs.evolve(wrong, right=nothing), Machine(CURVE), tokens=128)
    assert (found.arm, found.time) == (OFF, 127.0)


def test_clocks_are_repeatable_and_disturbed_now_and_then() -> None:
    first, second = Machine(CURVE, "a"), Machine(CURVE, "a")
    shown = [first.shown(1.0) for _ in range(2000)]
    assert shown == [second.shown(1.0) for _ in range(2000)]
    assert 2 <= sum(seconds > 0.1 for seconds in shown) <= 30
    assert sorted(shown)[1000] == pytest.approx(0.02, rel=0.01)
