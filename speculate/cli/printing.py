"""What may be written to a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """Without control sequences, which names in a stranger's file may hold."""
    return "".join(char if char.isprintable() else "?" for char in text)
