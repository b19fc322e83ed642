"""Windows over every kind of cache, driven at random, hold the text that was kept."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.support.caches_by_kind import KINDS
from tests.support.window_machine import WindowMachine


def run(kind: str, examples: int, steps: int, *, derandomize: bool) -> None:
    class Machine(WindowMachine):
        KIND = kind

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=derandomize,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("kind", ["window with sinks", "list", "hybrid", "hybrid without records"])
def test_windows_against_fresh_caches(kind: str) -> None:
    run(kind, 12, 20, derandomize=True)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_windows_against_fresh_caches_for_long(kind: str) -> None:
    run(kind, 300, 60, derandomize=False)
