"""Cuts the bundled prompts out of held-out files."""

from __future__ import annotations

import zlib

from recipes.demo import corpus, tokenizer
from recipes.demo.paths import PROMPTS

_CODE = {
    "textwrap": "textwrap.py", "heapq": "heapq.py", "calendar": "calendar.py", "csv": "csv.py",
    "shlex": "shlex.py", "queue": "queue.py",
}  # fmt: skip
_PROSE = 3
_TOKENS = (100, 200)


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


def _body(lines: list[str]) -> int:
    """Returns the first line of a function that lies about a third into a file."""
    third = len(lines) // 3
    return next(i for i in range(third, len(lines)) if lines[i].lstrip().startswith("def "))


def run() -> None:
    """Writes ``code_*.txt`` and ``prose_*.txt``."""
    PROMPTS.mkdir(parents=True, exist_ok=True)
    for old in PROMPTS.glob("*.txt"):
        old.unlink()
    sizes = range(_TOKENS[0], _TOKENS[1], (_TOKENS[1] - _TOKENS[0]) // len(_CODE))
    for (name, path), size in zip(_CODE.items(), sizes, strict=False):
        text = (corpus.stdlib() / path).read_text(encoding="utf-8")
        _write(f"code_{name}.txt", cut(text, _body(text.splitlines()), size))
    pages = sorted(corpus.prose(held_out=True), key=lambda t: zlib.crc32(t.encode()))
    long = [page for page in pages if len(page) > 900][:_PROSE]
    for i, page in enumerate(long):
        _write(f"prose_{i + 1}.txt", cut(page, 0, 120 + 30 * i))


def _write(name: str, text: str) -> None:
    (PROMPTS / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    run()
