"""A block that was cut before is cut one token too late."""

from __future__ import annotations

from typing import Any

from speculate.protocols import Entries
from tests.backends.test_kinds import TestState
from tests.faults.planting import Patch, Restore, recorded_as


def plant(patch: Patch) -> None:
    def change(fed: int, restore: Restore, old: Any) -> tuple[Restore, Any]:
        calls: list[int] = []

        def shifted(m: int) -> Entries:
            calls.append(m)
            return restore(min(m + len(calls) - 1, fed))

        return shifted, old

    recorded_as(patch, change)


Suite = TestState
