"""Every planted fault is caught by the contract that it was planted for."""

from __future__ import annotations

import time
from typing import Any

import pytest

# Importing these modules registers their faults.
from tests.faults import caches, heads, models, proposers, samplers, strategies
from tests.faults.planting import FAULTS, planted

MODULES = (caches, heads, models, proposers, samplers, strategies)
LIMIT_S = 5.0
"""Processor time in which a test must catch a fault, in seconds."""


def check_caught(name: str) -> None:
    caught_by = FAULTS[name].caught_by
    with planted(name) as suite:
        start = time.process_time()
        try:
            getattr(suite(), caught_by)()
        except AssertionError as error:
            caught = error
        else:
            raise AssertionError(f"{caught_by} does not catch {name}")
        seconds = time.process_time() - start
    assert seconds < LIMIT_S, f"caught after {seconds:.1f} s: {caught}"


def test_no_fault_is_missing() -> None:
    assert len(FAULTS) >= 99
    assert {name.partition(".")[0] for name in FAULTS} == {
        module.__name__.rpartition(".")[2] for module in MODULES
    }


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught(name: str) -> None:
    check_caught(name)


@pytest.mark.soak
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught_every_time(name: str) -> None:
    for _ in range(10):
        check_caught(name)


CORRECT = (
    caches.Rows,
    heads.Toy,
    models.Toy,
    proposers.Delegating,
    proposers.Lookup,
    strategies.Toy,
)


@pytest.mark.parametrize("part", CORRECT, ids=lambda part: f"{part.__module__}.{part.__name__}")
def test_without_a_fault_every_contract_holds(part: type[Any]) -> None:
    suite = type(part.__name__, (part.suite,), {"part": part})
    for name in dir(suite):
        if name.startswith("test_"):
            getattr(suite(), name)()
