"""Going back by a whole block takes the state at index -1."""

from __future__ import annotations

from tests.faults.planting import Patch, entries_of, recorded_as
from tests.models.test_families import TestQwen35


def plant(patch: Patch) -> None:
    recorded_as(
        patch,
        lambda fed, restore, old: (restore, (entries_of(old)[0], restore(fed)[1])),
    )


Suite = TestQwen35
