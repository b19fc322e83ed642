"""The conformance kit itself: what it reports, what it needs, and its contracts."""

from __future__ import annotations

import inspect
import pkgutil
import subprocess
import sys
from collections.abc import Callable, Iterator

import mlx.core as mx
import pytest

import speculate.testing
from speculate import PromptLookup, SpeculateError, SpeculativeModel
from speculate.backends.group import CacheGroup
from speculate.protocols import MTPHead, Plan, Round
from speculate.testing import (
    CacheTests,
    ContractError,
    HeadTests,
    ManualClock,
    ModelTests,
    ProposerTests,
    RecordingObserver,
    SamplerTests,
    ScheduledStrategy,
    StrategyTests,
    ToyHead,
    ToyModel,
    assert_lossless,
)
from speculate.testing._model_harness import ModelHarness
from speculate.testing.contract import at_step, contract, require
from speculate.testing.proposers import near_tie
from speculate.testing.strategies import check_plan
from speculate.testing.toy import WIDTH
from tests.support.model_contracts import Contracts

WITHOUT = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec
def found(cls, name, path=None, target=None):
    missing = name.partition(".")[0] in ("pytest", "_pytest", "hypothesis")
    return None if missing else find(name, path, target)
PathFinder.find_spec = classmethod(found)
"""
"""Makes a process in which neither is installed."""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT + code], check=False, capture_output=True, text=True
    )


def test_everything_is_imported_without_a_test_runner() -> None:
    names = [name for _, name, _ in pkgutil.iter_modules(speculate.testing.__path__)]
    assert {"_cache_machine", "caches", "lossless"} <= set(names)
    modules = ", ".join(f"speculate.testing.{n}" for n in names if n != "_cache_machine")
    done = run(f"import {modules}\nfrom speculate.testing import ToyModel, assert_lossless")
    assert done.returncode == 0, done.stderr


SUITE = """
from speculate.backends.kv import RewindableKVCache
from speculate.testing import CacheTests
class Mine(CacheTests):
    def make_cache(self): return RewindableKVCache()
    def adopt(self, stock): return stock
"""


def test_contracts_need_no_test_runner() -> None:
    done = run(f"{SUITE}\nMine().test_trimmed_tokens_leave_no_trace()")
    assert done.returncode == 0, done.stderr


def test_the_contract_that_needs_hypothesis_says_so() -> None:
    done = run(f"{SUITE}\nMine().test_operations_in_any_order_keep_the_sequence()")
    assert done.returncode != 0
    assert "MissingPackageError" in done.stderr
    assert 'pip install "mlx-speculate[testing]"' in done.stderr
    assert "is missing" in done.stderr


# What a violation reports.


@contract
def two_and_two_are_five(found: Callable[[], int]) -> None:
    with at_step(3, 17):
        require(found() == 5, f"{found()} instead of 5")


def test_a_violation_names_its_contract_the_round_and_the_position() -> None:
    with pytest.raises(ContractError) as caught:
        two_and_two_are_five(lambda: 4)
    assert str(caught.value) == "two and two are five: round 3, position 17: 4 instead of 5"
    assert (caught.value.contract, caught.value.round, caught.value.position) == (
        "two and two are five",
        3,
        17,
    )
    assert isinstance(caught.value, AssertionError)
    assert isinstance(caught.value, SpeculateError)


def test_an_error_of_the_implementation_is_a_violation_and_its_cause() -> None:
    with pytest.raises(ContractError, match="round 3, position 17: raised ZeroDivisionError") as e:
        two_and_two_are_five(lambda: 1 // 0)
    assert isinstance(e.value.__cause__, ZeroDivisionError)
    assert "ZeroDivisionError: integer division or modulo by zero (test_kit.py:" in str(e.value)
    two_and_two_are_five(lambda: 5)


def test_an_error_without_a_word_is_found_by_its_line() -> None:
    def silent() -> int:
        raise AssertionError

    with pytest.raises(ContractError, match=r"raised AssertionError \(test_kit\.py:\d+\)"):
        two_and_two_are_five(silent)


def test_an_interrupt_is_no_violation() -> None:
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
    with pytest.raises(ContractError, match=f"plans {depth} drafts by 'lookup': {reason}"):
        check_plan(Plan(lookup, depth), strategy)
    check_plan(Plan(lookup, 48), strategy)


# No contract is forgotten.

SUITES = (CacheTests, HeadTests, ModelTests, ProposerTests, SamplerTests, StrategyTests)


def contracts(suite: type) -> Iterator[tuple[str, object]]:
    for name in dir(suite):
        if name.startswith("test_"):
            yield name, getattr(suite, name)


@pytest.mark.parametrize("suite", SUITES)
def test_every_test_is_a_contract_with_a_docstring(suite: type) -> None:
    for name, method in contracts(suite):
        assert inspect.isfunction(method)
        assert "check" in method.__code__.co_freevars, f"{name} is not decorated"
        assert (method.__doc__ or "").strip(), f"{name} has no docstring"


def test_there_are_enough_contracts() -> None:
    assert sum(len(list(contracts(suite))) for suite in SUITES) >= 70


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
    same = ModelHarness(ToyModel(3)).cold_prefill
    Contracts(ToyModel(3), oracle=same).test_rejected_tokens_leave_no_trace()
    other = ModelHarness(ToyModel(4)).cold_prefill
    with pytest.raises(ContractError, match=r"\d from those of the given oracle$"):
        Contracts(ToyModel(3), oracle=other).test_rejected_tokens_leave_no_trace()


def test_lossless_names_the_round_and_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_lossless(ToyModel(), tokens=20)
    keep = CacheGroup.keep
    monkeypatch.setattr(CacheGroup, "keep", lambda self, m: keep(self, min(m + 1, self.fed())))
    own = "from those of a cold prefill by the model itself$"
    said = rf"assert lossless: round \d+, position \d+: next logits are [\d.]+ {own}"
    with pytest.raises(ContractError, match=said):
        assert_lossless(ToyModel(), tokens=20)
    with pytest.raises(ContractError, match=rf"\d {own}"):
        Contracts(ToyModel()).test_rejected_tokens_leave_no_trace()


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


def test_a_manual_clock_moves_only_when_advanced() -> None:
    clock = ManualClock()
    before = clock()
    clock.advance(1.5)
    assert clock() - before == 1.5


def test_an_observer_knows_the_round_of_each_token() -> None:
    observer = RecordingObserver()
    for index, emitted in enumerate((3, 1, 2)):
        observer(Round(index, None, 0, 0, 0, emitted, False))
    assert [observer.round_of(token) for token in range(7)] == [0, 0, 0, 1, 2, 2, 3]
