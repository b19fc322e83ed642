"""Stop strings, found wherever the tokens of a text happen to break."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

from speculate.validation import refuse, validated_text


@final
class StopStrings:
    """Lets text through up to the first stop string.

    Where the text is cut does not depend on how it came in pieces: the string that is
    complete first counts. What may still become a stop string is held back.

    Args:
        strings: One string, or several.

    Raises:
        OptionError: One is empty, or no string.
    """

    def __init__(self, strings: str | Sequence[str]) -> None:
        several: object = [strings] if isinstance(strings, str) else strings
        if isinstance(several, bytes) or not isinstance(several, Iterable):
            refuse("stop", "a stop string, or several", strings)
        self._strings = [validated_text("a stop string", text) for text in several]
        self._held = ""
        self._found = False

    @property
    def found(self) -> bool:
        """Whether the text has reached a stop string."""
        return self._found

    def feed(self, text: str) -> str:
        """Take in the next piece; return what is sure to come before any stop string."""
        if self._found:
            return ""
        text = self._held + text
        ends = [(at + len(s), at) for s in self._strings if (at := text.find(s)) >= 0]
        if ends:
            self._found, self._held = True, ""
            return text[: min(ends)[1]]
        sure = len(text) - max((_overlap(text, s) for s in self._strings), default=0)
        self._held = text[sure:]
        return text[:sure]

    def flush(self) -> str:
        """The text is over: return what was held back."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop` and is not all of it."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
