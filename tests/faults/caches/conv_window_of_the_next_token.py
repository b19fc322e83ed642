"""A cut takes the conv window one row too late."""

from __future__ import annotations

from tests.faults.planting import Patch, recorded_as
from tests.models.test_families import TestQwen35


def plant(patch: Patch) -> None:
    recorded_as(patch, lambda _, restore, old: (lambda m: (restore(m + 1)[0], restore(m)[1]), old))


Suite = TestQwen35
