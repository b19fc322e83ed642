"""A cut restores the recurrent state, and leaves the conv window where the block left it."""

from __future__ import annotations

from tests.faults.planting import Patch, recorded_as
from tests.models.test_families import TestQwen3Next


def plant(patch: Patch) -> None:
    recorded_as(patch, lambda fed, restore, old: (lambda m: (restore(fed)[0], restore(m)[1]), old))


Suite = TestQwen3Next
