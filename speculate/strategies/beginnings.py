"""How often a lookup that found nothing finds something one token later."""

from __future__ import annotations

from typing import Final, final

from speculate.protocols import Outlook

LEARNED: Final = 0.05
"""What the newest place counts for."""

RESUMED: Final = 0.1
"""Chance that something is found at the next place, at the least, where a copy has just ended: a
text that was copied and changed goes back to what it copied."""


@final
class Beginnings:
    """Places where something is found, and was not at the place in front.

    A plain round is launched before the last token is read, so that what begins there to be found
    is found too late, unless somebody asks for it at a venture.

    Attributes:
        chance: That something is found at the next place, where nothing is now.
        kind: Of the newest draft that began so; see `Outlook`.
    """

    def __init__(self) -> None:
        self.chance: float = 0.0
        self.kind: int = 0
        self._found = False

    def copy_ended(self) -> None:
        """A draft was right for a while, and then was not."""
        self.chance = max(self.chance, RESUMED)

    def note(self, outlook: Outlook, *, plain: bool) -> None:
        """What is found now.

        Args:
            outlook: Behind all that is known.
            plain: The text went on by a single token.
        """
        found = outlook.length > 0
        if plain and not self._found:
            self.chance += LEARNED * (found - self.chance)
            if found:
                self.kind = outlook.kind
        self._found = found
