"""A draft's law in block verification is not looked at, and ratios become no number."""

from __future__ import annotations

from tests.faults.planting import Patch
from tests.faults.samplers import laws_are_not_looked_at
from tests.sampling.test_conformance import TestBlocks


def plant(patch: Patch) -> None:
    laws_are_not_looked_at.plant(patch)


Suite = TestBlocks
