"""Cuts the bundled prompts out of held-out files."""

from __future__ import annotations

import zlib

from tools.demo_models import corpus, tokenizer
from tools.demo_models.paths import PROMPTS

# Held-out functions whose continuation by the target does not fall into a loop at once
# (file, first line in CPython 3.11.7 counted from 0, tokens).
_CODE = (
    ("calendar.py", 369, 150),
    ("cmd.py", 280, 90),
    ("fractions.py", 276, 150),
    ("heapq.py", 462, 90),
    ("json/decoder.py", 216, 90),
    ("shlex.py", 324, 150),
)
_PROSE = 3


def cut(text: str, start: int, tokens: int) -> str:
    """Returns whole lines from a line on, up to a number of tokens.

    The last line's end is left off: the vocabulary joins a line's end to the next line's
    indentation, so a bare one at the end would say that no indentation follows.
    """
    encode, kept = tokenizer.load().encode, ""
    for line in text.splitlines(keepends=True)[start:]:
        if len(encode(kept + line).ids) > tokens:
            break
        kept += line
    return kept.rstrip()


def run() -> None:
    """Writes ``code_*.txt`` and ``prose_*.txt``."""
    PROMPTS.mkdir(parents=True, exist_ok=True)
    for old in PROMPTS.glob("*.txt"):
        old.unlink()
    for path, start, size in _CODE:
        text = (corpus.stdlib() / path).read_text(encoding="utf-8")
        name = path.removesuffix(".py").replace("/", "_")
        _write(f"code_{name}.txt", cut(text, start, size))
    # Pages of grammar rules come last: their continuation is a loop of punctuation.
    pages = sorted(
        corpus.prose(held_out=True), key=lambda t: ("::=" in t[:900], zlib.crc32(t.encode()))
    )
    long = [page for page in pages if len(page) > 900][:_PROSE]
    for i, page in enumerate(long):
        _write(f"prose_{i + 1}.txt", cut(page, 0, 120 + 30 * i))


def _write(name: str, text: str) -> None:
    (PROMPTS / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    run()
