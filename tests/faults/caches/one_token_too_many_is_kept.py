"""A window keeps the first rejected token."""

from __future__ import annotations

from speculate.backends.group import CacheGroup
from tests.faults.planting import Patch
from tests.models.test_families import TestGptOss


def plant(patch: Patch) -> None:
    plan = CacheGroup.plan_keep
    patch.setattr(CacheGroup, "plan_keep", lambda self, m: plan(self, min(m + 1, self.fed())))


Suite = TestGptOss
