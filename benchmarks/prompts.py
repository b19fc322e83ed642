"""Held-out prompts by kind and length."""

from __future__ import annotations

import random
from typing import Final

from benchmarks.workloads import REQUESTS, TEXTS, Encoder

KINDS: Final = ("code", "prose")
END: Final = 192
"""Tokens of a text at the end of a longer prompt."""


def prompts(tokenizer: Encoder, kind: str, length: int, count: int) -> list[list[int]]:
    """Beginnings of files that no bundled model was trained on.

    In front of a longer prompt come lines of such files, in random order.

    Args:
        tokenizer: Of the bundled models.
        kind: `"code"` or `"prose"`.
        length: Tokens of each.
        count: How many, at most 6.
    """
    return [_prompt(tokenizer, kind, length, index) for index in range(count)]


def _prompt(tokenizer: Encoder, kind: str, length: int, index: int) -> list[int]:
    text = tokenizer.encode(_read(kind, index))
    if length <= len(text):
        return text[:length]
    lines = [line for other in range(REQUESTS) for line in _read(kind, other).splitlines()]
    chance, filling = random.Random(index), list[int]()
    while len(filling) < length - END:
        filling += tokenizer.encode("\n".join(chance.sample(lines, len(lines))) + "\n")
    return [*filling[: length - END], *text[:END]]


def _read(kind: str, index: int) -> str:
    return (TEXTS / f"{kind}_{index + 1}.txt").read_text(encoding="utf-8")
