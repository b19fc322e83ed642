"""One word per concept: the wording of the package, its help texts, README and docs.

Names that a module defines are checked against `RETIRED_NAMES`; docstrings, comments and other
strings (errors and help texts among them) and the prose of the pages against `RETIRED`.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]

RETIRED: Final[Mapping[str, str]] = {
    r"laws?": "distribution, log-probabilities; contract",
    r"tak(?:e|es|en|ing) (?:\w+ ){0,3}back|took (?:\w+ ){0,3}back": "roll back, trim, rewind",
    r"(?:hand|hands|handed|handing|give|gives|gave|given) (?:\w+ ){0,3}back": "return",
    r"(?:go|goes|going|went|gone) back": "rewind, roll back, restore",
    r"owe|owes|owed|owing|debts?": "replay",
    r"whoever|whom|somebody|someone|nobody": "regardless of the proposer; no proposer",
    r"told|hears?|heard": "notify, observe, commit",
    r"behind": "after; backlog",
    r"in front of|in front": "before",
    r"newest": "last token, latest",
    r"(?:drafts?|tokens?|that|which|still) (?:stands?|stood|falls?|fell)": "accepted, rejected",
    r"judg(?:e|es|ed|ing|ements?)": "verify",
    r"outlooks?|(?<!in )hindsight|foresees?": "forecast, score",
    r"at a venture": "exploration, speculatively",
    r"what (?:it|that|they) (?:is|are) worth": "estimate, speedup",
    r"fades?|faded|fading": "decay, discount",
    r"as good as": "nearly",
    r"looks? (?:at )?whether": "checks whether",
    r"dear|dearer": "expensive, costly",
    r"mend": "fix",
}
"""What is not said, as a pattern of whole words, and what to say instead."""

EXCEPTIONS: Final[Mapping[tuple[str, str], str]] = {}
"""(file, passage) that may use a retired word, and the reason."""

RETIRED_NAMES: Final[frozenset[str]] = frozenset(
    (
        "owe", "owed", "owes", "owing", "paid", "told", "tells", "hear", "hears", "heard",
        "whoever",
        "somebody", "nobody", "fade", "faded", "judge", "judged", "stood", "fell", "venture",
        "endless", "halves",
    )
)  # fmt: skip
"""Parts of names, between underscores or capitals, that no name defined here may have."""

PATTERNS: Final = {
    re.compile(rf"\b(?:{word})\b", re.IGNORECASE): say for word, say in RETIRED.items()
}


def python_prose(source: str) -> Iterator[tuple[int, str]]:
    """Line numbers and text of comments and strings, without what is in backquotes."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_text = token.type in (tokenize.COMMENT, tokenize.STRING)
        if is_text or tokenize.tok_name[token.type] == "FSTRING_MIDDLE":
            # Neither names of arguments, nor attributes and what is put into an f-string.
            text = re.sub(
                r"^\s+\w+:|\w+\.\w+|\w+\(\)|{[^}]*}", " ", token.string, flags=re.MULTILINE
            )
            yield token.start[0], plain(text)


def page_prose(source: str) -> Iterator[tuple[int, str]]:
    """Line numbers and paragraphs of a page, without code."""
    source = re.sub(r"^( *)```.*?^\1```", blank, source, flags=re.MULTILINE | re.DOTALL)
    line = 1
    for paragraph in re.split(r"(\n\s*\n)", source):
        yield line, plain(paragraph)
        line += paragraph.count("\n")


def blank(found: re.Match[str]) -> str:
    return "\n" * found[0].count("\n")


def plain(text: str) -> str:
    """Without inline code, and links without their targets."""
    return re.sub(r"\]\([^)\s]*\)|\]\[[^\]]*\]", "]", re.sub(r"`[^`]*`", "`", text))


def found_in(source: str, *, page: bool) -> Iterator[tuple[int, str, str]]:
    """Line, passage and what to say instead, for every retired word."""
    for line, text in page_prose(source) if page else python_prose(source):
        for pattern, say in PATTERNS.items():
            for found in pattern.finditer(" ".join(text.split())):
                before, after = found.start() - 30, found.end() + 30
                yield line, found.string[max(before, 0) : after], f"{found[0]!r}: say {say}"


def names_in(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of every class, function, argument and variable that a module defines."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case _:
                pass


def parts_of(name: str) -> set[str]:
    """Words of a name, in small letters: `KnownText` and `known_text` have the same."""
    return {part.lower() for part in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)}


def files() -> Iterator[tuple[str, str]]:
    paths = [*(ROOT / "speculate").rglob("*.py"), *(ROOT / "docs").rglob("*.md")]
    for path in sorted([*paths, ROOT / "README.md"]):
        yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def wording_errors(name: str, source: str) -> list[str]:
    allowed = [passage for path, passage in EXCEPTIONS if path == name]
    wrong = [
        f"{name}:{line}: {say} ... {passage}"
        for line, passage, say in found_in(source, page=name.endswith(".md"))
        if not any(each in passage for each in allowed)
    ]
    if name.endswith(".py"):
        wrong += [
            f"{name}:{line}: the name {defined} has {', '.join(sorted(bad))}"
            for line, defined in names_in(source)
            if (bad := parts_of(defined) & RETIRED_NAMES)
        ]
    return wrong


def test_one_word_per_concept() -> None:
    wrong = [error for name, source in files() for error in wording_errors(name, source)]
    assert not wrong, "\n".join(wrong)


def test_what_is_excepted_is_there() -> None:
    names = [name for name, _ in files()]
    assert all(path in names for path, _ in EXCEPTIONS)


@pytest.mark.parametrize(
    ("name", "source", "said"),
    [
        ("a.py", '"""The law of a token."""\n', "'law'"),
        ("a.py", "# What is taken back\n# stays.\n", "'taken back'"),
        ("a.py", 'raise E(f"{n} tokens are owed")\n', "'owed'"),
        ("a.py", "def feed_owed() -> None: ...\n", "feed_owed"),
        ("a.py", "class Endless: ...\n", "Endless"),
        ("a.md", "The token\nbehind it, by whoever\ndrafts.\n", "'behind'"),
        ("a.md", "Text.\n\nDrafts that\nstand are kept.\n", "'that stand'"),
    ],
)
def test_retired_wording_is_found(name: str, source: str, said: str) -> None:
    assert any(said in error for error in wording_errors(name, source))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("a.py", '"""Calls `hand_back`, see `Draft.laws`. Replayed, prepaid, retold."""\n'),
        ("a.py", "law = model.owed\n"),
        ("a.md", "Plain.\n\n```python\nx = 1  # behind\n```\n\nSee [this](laws.md#owed) `told`.\n"),
    ],
)
def test_code_on_a_page_and_names_of_others_are_not_prose(name: str, source: str) -> None:
    assert wording_errors(name, source) == []
