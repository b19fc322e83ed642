"""Faults: what one is, how it is planted, and which test must catch it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import attrs
import pytest

from speculate.backends.arrays import RewindableArraysCache
from speculate.protocols import Entries

Patch = pytest.MonkeyPatch
Restore = Callable[[int], Entries]
Change = Callable[[int, Restore, Any], tuple[Restore, Any]]
C = TypeVar("C", bound=type[Any])


@attrs.frozen
class Fault:
    """A mistake in an implementation, and the test that must catch it.

    Attributes:
        name: Protocol and class of the fault, as in "caches.ConvWindowIsKept".
        description: What breaks, in one sentence.
        caught_by: Name of the test.
        suite: The tests that the author of the implementation would inherit.
        plant: Plants the fault in our own code; `None` if the suite tests a faulty class.
    """

    name: str
    description: str
    caught_by: str
    suite: type[Any]
    plant: Callable[[Patch], None] | None


FAULTS: dict[str, Fault] = {}
"""Every fault by name."""


def fault(description: str, *, caught_by: str) -> Callable[[C], C]:
    """Register a class as a fault.

    The class has a `suite`. Either it has a static method `plant(patch)`, or it is the faulty
    implementation itself, and the suite makes instances of its attribute `part`.

    Args:
        description: What breaks, in one sentence.
        caught_by: Name of the test that must catch it.
    """

    def register(cls: C) -> C:
        name = f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}"
        plant = vars(cls).get("plant")
        suite = cls.suite if plant else type(cls.__name__, (cls.suite,), {"part": cls})
        assert name not in FAULTS, name
        assert hasattr(suite, caught_by), caught_by
        FAULTS[name] = Fault(name, description, caught_by, suite, getattr(cls, "plant", None))
        return cls

    return register


@contextmanager
def planted(name: str) -> Iterator[type[Any]]:
    """The suite that ought to fail, while a fault is in the code that it tests."""
    found = FAULTS[name]
    with pytest.MonkeyPatch.context() as patch:
        if found.plant is not None:
            found.plant(patch)
        yield found.suite


def recorded_as(patch: Patch, change: Change) -> None:
    """Change what recurrent layers record before it reaches their cache.

    Args:
        patch: Undoes it.
        change: Given the tokens of a block, its `restore` and the snapshot before it.
    """
    record = RewindableArraysCache.record_rollback

    def changed(self: Any, fed: int, restore: Restore | None, snapshot: Any, /) -> None:
        if restore is None:
            record(self, fed, restore, snapshot)
        else:
            record(self, fed, *change(fed, restore, snapshot))

    patch.setattr(RewindableArraysCache, "record_rollback", changed)


def entries_of(snapshot: Any) -> Entries:
    """The entries of a snapshot, also where a rewind into it was only noted."""
    entries: Entries = snapshot.entries() if hasattr(snapshot, "entries") else snapshot
    return entries
