"""A cut takes the recurrent state one token too early."""

from __future__ import annotations

from typing import Any

from tests.faults.planting import Patch, Restore, entries_of, recorded_as
from tests.models.test_families import TestQwen35


def plant(patch: Patch) -> None:
    def change(_: int, restore: Restore, old: Any) -> tuple[Restore, Any]:
        return lambda m: (restore(m)[0], restore(m - 1)[1] if m > 1 else entries_of(old)[1]), old

    recorded_as(patch, change)


Suite = TestQwen35
