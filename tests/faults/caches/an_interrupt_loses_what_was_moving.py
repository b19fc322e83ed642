"""An interrupt between two attributes of a cache that is adopted or handed back loses the text."""

from __future__ import annotations

from speculate.backends import adopt
from speculate.errors import SpeculateError
from tests.decoding.test_window_interrupts import check, lines
from tests.faults.planting import Patch


def plant(patch: Patch) -> None:
    patch.setattr(adopt, "contents", lambda caches: lambda: None)


class Suite:
    def test_an_interrupt_at_the_end_of_a_window(self) -> None:
        total = lines("gpt_oss", False)
        for at in range(total, total - 400, -7):
            try:
                check("gpt_oss", False, at)
            except (SpeculateError, AttributeError, TypeError) as error:
                raise AssertionError(str(error)) from error
