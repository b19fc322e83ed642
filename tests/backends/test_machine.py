"""Every backend, driven at random, holds what a fresh cache holds."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.backends.layers import KINDS
from tests.backends.machine import CacheMachine


def run(kind: str, examples: int, steps: int, *, derandomize: bool) -> None:
    class Machine(CacheMachine):
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


@pytest.mark.parametrize("kind", KINDS)
def test_every_backend_against_a_fresh_cache(kind: str) -> None:
    run(kind, 10, 20, derandomize=True)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_every_backend_against_a_fresh_cache_for_long(kind: str) -> None:
    run(kind, 400, 60, derandomize=False)
