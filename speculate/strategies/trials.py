"""How much time a strategy may lose to find out whether something else is better."""

from __future__ import annotations

from typing import Final, final

SHARE: Final = 0.005
"""Part of the time that trials may cost."""

START: Final = 1.0
"""Plain steps that trials may cost before any were earned."""

MOST: Final = 3.0
"""Plain steps that may be saved up for trials."""


@final
class Trials:
    """An account that every round pays into, and that trials are paid from, in plain steps."""

    def __init__(self) -> None:
        self._saved = START

    def earn(self, time: float) -> None:
        """A round takes so long."""
        self._saved = min(self._saved + SHARE * time, MOST)

    def pay(self, time: float) -> bool:
        """Pay for a trial that is expected to lose so much, if there is enough."""
        if time > self._saved:
            return False
        self._saved -= time
        return True
