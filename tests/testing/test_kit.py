"""The conformance kit itself: what it says, what it needs, and that it forgets no law."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Iterator

import mlx.core as mx
import pytest

import speculate.testing.laws
import speculate.testing.suites
from speculate import PromptLookup, SpeculateError, SpeculativeModel
from speculate.backends.group import CacheGroup
from speculate.protocols import MTPHead, Plan, Round
from speculate.testing import (
    BrokenLawError,
    MadeUpClock,
    RecordingObserver,
    ScheduledStrategy,
    ToyHead,
    ToyModel,
    assert_lossless,
)
from speculate.testing.broken import at, law, require
from speculate.testing.drafts import near_tie
from speculate.testing.driving import Driven
from speculate.testing.laws.models import whatever_is_rejected_leaves_no_trace
from speculate.testing.laws.strategies import check
from speculate.testing.suites import HeadTests, ModelTests
from speculate.testing.toy_layers import WIDTH

WITHOUT = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec
def found(cls, name, path=None, target=None):
    missing = name.partition(".")[0] in ("pytest", "_pytest", "hypothesis")
    return None if missing else find(name, path, target)
PathFinder.find_spec = classmethod(found)
"""
"""A process in which neither is installed."""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT + code], check=False, capture_output=True, text=True
    )


def test_laws_and_fakes_need_no_test_runner() -> None:
    names = [name for _, name, _ in pkgutil.iter_modules(speculate.testing.laws.__path__)]
    modules = ", ".join(f"speculate.testing.laws.{name}" for name in names)
    done = run(f"import {modules}\nfrom speculate.testing import ToyModel, assert_lossless")
    assert done.returncode == 0, done.stderr


def test_suites_say_what_they_need() -> None:
    done = run("import speculate.testing.suites")
    assert done.returncode != 0
    assert 'pip install "mlx-speculate[testing]"' in done.stderr
    assert "is missing" in done.stderr


# What a broken law says.


@law
def two_and_two_are_five(found: Callable[[], int]) -> None:
    with at(3, 17):
        require(found() == 5, f"{found()} instead of 5")


def test_a_broken_law_names_itself_the_round_and_the_position() -> None:
    with pytest.raises(BrokenLawError) as caught:
        two_and_two_are_five(lambda: 4)
    assert str(caught.value) == "two and two are five: round 3, position 17: 4 instead of 5"
    assert (caught.value.law, caught.value.round, caught.value.position) == (
        "two and two are five",
        3,
        17,
    )
    assert isinstance(caught.value, AssertionError)
    assert isinstance(caught.value, SpeculateError)


def test_an_error_of_the_part_breaks_the_law_and_is_its_cause() -> None:
    with pytest.raises(BrokenLawError, match="round 3, position 17: raised ZeroDivisionError") as e:
        two_and_two_are_five(lambda: 1 // 0)
    assert isinstance(e.value.__cause__, ZeroDivisionError)
    assert "ZeroDivisionError: integer division or modulo by zero (test_kit.py:" in str(e.value)
    two_and_two_are_five(lambda: 5)


def test_an_error_without_a_word_is_found_by_its_line() -> None:
    def silent() -> int:
        raise AssertionError

    with pytest.raises(BrokenLawError, match=r"raised AssertionError \(test_kit\.py:\d+\)"):
        two_and_two_are_five(silent)


def test_an_interrupt_is_nobodys_broken_law() -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        two_and_two_are_five(interrupted)


@pytest.mark.parametrize(
    ("depth", "reason"),
    [
        (-1, "plan at least 1, or Plan"),
        (0, "plan at least 1, or Plan"),
        (49, "plan at most 48, since caches record 64 tokens"),
    ],
)
def test_a_depth_that_is_refused_says_why(depth: int, reason: str) -> None:
    lookup = PromptLookup()
    strategy = ScheduledStrategy([(lookup, 2)])
    with pytest.raises(BrokenLawError, match=f"plans {depth} drafts by 'lookup': {reason}"):
        check(Plan(lookup, depth), strategy)
    check(Plan(lookup, 48), strategy)


# No law is forgotten.


def laws() -> Iterator[str]:
    for _, name, _ in pkgutil.iter_modules(speculate.testing.laws.__path__):
        module = importlib.import_module(f"speculate.testing.laws.{name}")
        for key, value in vars(module).items():
            if inspect.isfunction(value) and "check" in value.__code__.co_freevars:
                yield key


def test_every_law_is_in_a_suite() -> None:
    found = set(laws())
    sources = [
        inspect.getsource(importlib.import_module(f"speculate.testing.suites.{name}"))
        for _, name, _ in pkgutil.iter_modules(speculate.testing.suites.__path__)
    ]
    called = " ".join(sources)
    assert len(found) > 50
    assert [name for name in sorted(found) if f".{name}(" not in called] == []


# The fakes.


class TestToyModel(ModelTests):
    def make_model(self) -> SpeculativeModel:
        return ToyModel()


class TestToyHead(HeadTests):
    width = WIDTH
    vocab_size = 64

    def make_head(self) -> MTPHead:
        return ToyHead()


def test_toys_of_one_seed_are_the_same_and_of_two_are_not() -> None:
    whatever_is_rejected_leaves_no_trace(
        Driven(ToyModel(3), oracle=Driven(ToyModel(3))._cold_prefill)
    )
    with pytest.raises(BrokenLawError, match=r"\d from those of the given oracle$"):
        whatever_is_rejected_leaves_no_trace(
            Driven(ToyModel(3), oracle=Driven(ToyModel(4))._cold_prefill)
        )


def test_lossless_names_the_round_and_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_lossless(ToyModel(), tokens=20)
    plan = CacheGroup.plan_keep
    monkeypatch.setattr(CacheGroup, "plan_keep", lambda self, m: plan(self, min(m + 1, self.fed())))
    own = "from those of a cold prefill by the model itself$"
    said = rf"assert lossless: round \d+, position \d+: next logits are [\d.]+ {own}"
    with pytest.raises(BrokenLawError, match=said):
        assert_lossless(ToyModel(), tokens=20)
    with pytest.raises(BrokenLawError, match=rf"\d {own}"):
        whatever_is_rejected_leaves_no_trace(Driven(ToyModel()))


@pytest.mark.parametrize(
    ("drafted", "tolerance", "parted"),
    [
        ([1, 3], 0.2, None),
        ([1, 2], 0.2, 1),
        ([1, 2], 0.1, None),
        ([1, 0], 0.2, None),
        ([2, 3], 0.0, None),
    ],
)
def test_a_draft_may_part_at_a_near_tie(
    drafted: list[int], tolerance: float, parted: int | None
) -> None:
    rows = [mx.array([[0.0, 4.0, 4.0, 0.0]]), mx.array([[-9.0, 0.0, 1.0, 3.0]]) / 2]
    assert near_tie(drafted, [1, 3], rows, tolerance) == parted


def test_a_clock_goes_when_it_is_told_to() -> None:
    clock = MadeUpClock()
    before = clock()
    clock.advance(1.5)
    assert clock() - before == 1.5


def test_an_observer_knows_the_round_of_each_token() -> None:
    observer = RecordingObserver()
    for index, emitted in enumerate((3, 1, 2)):
        observer(Round(index, None, 0, 0, 0, emitted, False))
    assert [observer.round_of(token) for token in range(7)] == [0, 0, 0, 1, 2, 2, 3]
