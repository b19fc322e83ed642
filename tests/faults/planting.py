"""How mistakes are planted where a part cannot be given: in our own, by patching."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from speculate.backends.arrays import RewindableArraysCache
from speculate.protocols import Entries

Patch = pytest.MonkeyPatch
Restore = Callable[[int], Entries]
Change = Callable[[int, Restore, Any], tuple[Restore, Any]]


def recorded_as(patch: Patch, change: Change) -> None:
    """Change what recurrent layers record, before it reaches their cache.

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
