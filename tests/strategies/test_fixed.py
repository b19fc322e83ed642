"""Strategies that decide once and for all."""

from __future__ import annotations

import subprocess
import sys

import pytest

from speculate import Fixed, Off
from speculate.errors import OptionError
from speculate.protocols import Plan, Round, Strategy
from speculate.strategies.fixed import MAX_DEPTH
from speculate.testing import ScriptedProposer

ROUND = Round(index=0, proposer="one", planned=3, drafted=3, accepted=0, emitted=1, truncated=False)


def proposer() -> ScriptedProposer:
    return ScriptedProposer([1, 2, 3], vocab_size=8, name="one")


@pytest.mark.parametrize("remaining", [None, 1, 2, 1000])
def test_off_never_drafts(remaining: int | None) -> None:
    strategy: Strategy = Off()
    assert list(strategy.proposers) == []
    for _ in range(3):
        assert strategy.plan(remaining) == Plan(None, 0)
        strategy.observe(ROUND)


@pytest.mark.parametrize("depth", [1, 3, MAX_DEPTH])
@pytest.mark.parametrize("remaining", [None, 1, 2, 1000])
def test_fixed_asks_for_the_same_in_every_round(depth: int, remaining: int | None) -> None:
    one = proposer()
    strategy: Strategy = Fixed(one, depth)
    assert list(strategy.proposers) == [one]
    for _ in range(3):
        assert strategy.plan(remaining) == Plan(one, depth)
        strategy.observe(ROUND)


def test_fixed_at_depth_zero_keeps_its_proposer_informed_and_never_asks_it() -> None:
    one = proposer()
    strategy = Fixed(one, 0)
    assert list(strategy.proposers) == [one]
    assert strategy.plan(None) == Plan(None, 0)


def test_the_default_depth_is_three() -> None:
    assert Fixed(proposer()).plan(None).depth == 3


@pytest.mark.parametrize("depth", [-1, MAX_DEPTH + 1])
def test_a_depth_out_of_range_names_the_range(depth: int) -> None:
    with pytest.raises(OptionError, match=f"from 0 to {MAX_DEPTH}, got {depth}"):
        Fixed(proposer(), depth)


def test_strategies_are_host_code_that_never_loads_a_model_library() -> None:
    code = (
        "import sys, speculate.strategies.fixed; "
        "sys.exit('mlx_lm' in sys.modules or 'mlx.nn' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
