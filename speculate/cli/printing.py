"""What may be written: to a terminal, and as JSON."""

from __future__ import annotations

import math


def printable(text: str) -> str:
    """Without control sequences, which names in a stranger's file may hold."""
    return "".join(char if char.isprintable() else "?" for char in text)


def finite(value: object) -> object:
    """The same with `null` for what JSON has no number for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value
