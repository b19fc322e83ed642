"""A window takes tokens out of the block of the one after it."""

from __future__ import annotations

from speculate import Window, speculation
from speculate.errors import RewindError
from tests.backends.driving import cold, feed, ids, model
from tests.faults.planting import Patch


def plant(patch: Patch) -> None:
    patch.setattr(Window, "leave", lambda self: None)


class Suite:
    def test_a_window_that_was_left_refuses_to_keep(self) -> None:
        caches = cold(model("dense"), ids(5))[1]
        with speculation(caches) as old:
            pass
        with speculation(caches):
            feed(model("dense"), caches, ids(4, seed=1))
            try:
                old.keep(1)
            except RewindError:
                return
            raise AssertionError("it kept one token of another window's block")
