"""Rows are taken back, and the recurrent state stays as the whole block left it."""

from __future__ import annotations

from tests.faults.planting import Patch, recorded_as
from tests.models.test_families import TestQwen3Next


def plant(patch: Patch) -> None:
    recorded_as(patch, lambda fed, restore, _: (lambda _m: restore(fed), restore(fed)))


Suite = TestQwen3Next
