"""Every planted mistake is caught by the tests that its author would have inherited."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent
LIMIT_S = 5.0
SHARED = {"rows", "toys"}
"""Files that hold no mistake."""

PLANTED = sorted(
    f"{path.parent.name}.{path.stem}"
    for path in HERE.glob("*/*.py")
    if path.stem not in SHARED and not path.stem.startswith("_")
)


@contextmanager
def planted(name: str) -> Iterator[type[Any]]:
    """The tests that ought to fail, while a mistake is in the parts they prove."""
    module: ModuleType = importlib.import_module(f"tests.faults.{name}")
    with pytest.MonkeyPatch.context() as patch:
        if "plant" in vars(module):
            module.plant(patch)
        yield module.Suite


def first_broken(suite: type[Any]) -> str | None:
    """What the first test says that fails; `None` if all of them pass."""
    for name in dir(suite):
        if name.startswith("test_"):
            try:
                getattr(suite(), name)()
            except AssertionError as broken:
                return f"{name}: {broken}"
    return None


def check_caught(name: str) -> None:
    with planted(name) as suite:
        start = time.process_time()
        broken = first_broken(suite)
        seconds = time.process_time() - start
    assert broken is not None, f"nobody noticed: {name}"
    assert seconds < LIMIT_S, f"noticed after {seconds:.1f} s: {broken}"


def test_there_are_enough() -> None:
    assert len(PLANTED) >= 25


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_caught(name: str) -> None:
    check_caught(name)


@pytest.mark.soak
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_caught_every_time(name: str) -> None:
    for _ in range(10):
        check_caught(name)
