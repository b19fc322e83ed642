"""The roofline: its formulas by hand, and sizes that are published."""

from __future__ import annotations

import random

import attrs
import pytest

from benchmarks.roofline.bound import Bound
from benchmarks.roofline.facts import MACHINES, MODELS, Machine
from benchmarks.roofline.shape import Shape

QWEN = MODELS["Qwen3.5-4B, 4 bit"]
NEXT = MODELS["Qwen3-Next-80B-A3B, 4 bit"]
OSS = MODELS["gpt-oss-20b, MXFP4 and 8 bit"]


def parameters(shape: Shape) -> float:
    layers = shape.attention + shape.recurrent
    return shape.always + layers * shape.experts * shape.expert


@pytest.mark.parametrize(("shape", "billions"), [(QWEN, 4.2), (NEXT, 80.0), (OSS, 20.3)])
def test_shapes_have_as_many_weights_as_is_published(shape: Shape, billions: float) -> None:
    assert parameters(shape) / 1e9 == pytest.approx(billions, rel=0.03)


def test_expected_experts_are_those_of_random_rows() -> None:
    chance = random.Random(0)
    union = [
        len({expert for _ in range(5) for expert in chance.sample(range(32), 4)})
        for _ in range(4000)
    ]
    assert OSS.distinct(5) == pytest.approx(sum(union) / len(union), rel=0.01)
    assert OSS.distinct(1) == pytest.approx(4)
    assert QWEN.distinct(5) == 0


def test_a_forward_bound_by_memory_takes_several_rows_for_free() -> None:
    bound = Bound(QWEN, MACHINES["M4 Max"], context=1024)
    assert bound.v(1) == 1.0
    assert bound.v(4) == pytest.approx(1.0, abs=0.01)


def test_one_bound_by_arithmetic_pays_for_every_row() -> None:
    bound = Bound(QWEN, Machine(bandwidth=1e15, operations=1e12), context=1024)
    assert bound.v(4) == pytest.approx(4.0)


def test_experts_make_rows_expensive() -> None:
    bound = Bound(NEXT, MACHINES["M4 Max"], context=1024)
    assert 1.2 < bound.v(2) < 2
    even = attrs.evolve(NEXT, experts=0, inner=NEXT.inner * 11)
    assert Bound(even, MACHINES["M4 Max"], context=1024).v(2) == pytest.approx(1.0, abs=0.01)


def test_the_speedup_is_that_of_the_formula_and_the_best_depth_its_maximum() -> None:
    bound = Bound(QWEN, MACHINES["M4 Max"], context=1024)
    survival = [0.8, 0.5, 0.1, 0.01]
    by_hand = (1 + 0.8 + 0.5) / (bound.v(3) + 2 * bound.c())
    assert bound.speedup(survival[:2]) == pytest.approx(by_hand)
    depth = bound.best(survival)
    assert all(
        bound.speedup(survival[:depth]) >= bound.speedup(survival[:other]) for other in range(5)
    )
    assert bound.best([0.0, 0.0]) == 0
