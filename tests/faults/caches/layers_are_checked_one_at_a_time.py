"""A trim does not ask the other layers of its list."""

from __future__ import annotations

from speculate.backends.group import CacheGroup
from tests.backends.test_kinds import TestRows
from tests.faults.planting import Patch


def plant(patch: Patch) -> None:
    patch.setattr(CacheGroup, "check_trim", lambda self, asking, n: None)


Suite = TestRows
