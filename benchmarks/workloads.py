"""Named sets of prompts, and the texts that a target is made to emit after them.

A small model neither copies nor changes its subject when asked to. So a request is a prompt
and pieces of text: some are forced on the target, and between them it goes on as it likes.
"""

from __future__ import annotations

import importlib
import inspect
import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from pydoc_data import topics
from typing import Final, Protocol, final

import attrs

from speculate.loading import demo_folder

TEXTS: Final = Path(__file__).parent / "data" / "texts"
"""Cuts out of files that no bundled model was trained on."""

OTHERS: Final[Mapping[str, Sequence[tuple[str, int]]]] = {
    "code": (
        ("bisect", 400),
        ("sched", 2600),
        ("netrc", 3200),
        ("json.encoder", 5000),
        ("calendar", 9000),
        ("colorsys", 1200),
    ),
    "prose": (
        ("attribute-access", 600),
        ("attribute-access", 8000),
        ("attribute-access", 11800),
        ("formatstrings", 6200),
        ("formatstrings", 9900),
        ("formatstrings", 22000),
    ),
}
"""Modules of the standard library and pages of the language reference that no bundled model was
trained on either, and where in them the texts of other requests begin."""

CUT: Final = 1200
"""Characters of such a text."""

REQUESTS: Final = 6
LONG: Final = 512
SHORT: Final = 320
TURN: Final = 80
"""Tokens that the target says by itself between two changes of subject."""

WORD: Final = re.compile(r"[A-Za-z]{4,}")
EDITED: Final = 0.1
"""Part of a copy's words that differ from the original."""


class Encoder(Protocol):
    """What is needed of a tokenizer."""

    def encode(self, text: str, /) -> list[int]: ...


@final
@attrs.frozen
class Piece:
    """A part of an output: first what is forced, then what the target says by itself.

    Attributes:
        forced: Ids that the target is made to emit.
        free: Tokens that it adds.
    """

    forced: tuple[int, ...] = ()
    free: int = 0

    @property
    def length(self) -> int:
        """Tokens in all."""
        return len(self.forced) + self.free


@final
@attrs.frozen
class Request:
    """A prompt and what is to come after it.

    Attributes:
        prompt: Ids.
        pieces: The output, in order.
        length: Tokens of it that are emitted; at most as many as the pieces have.
    """

    prompt: tuple[int, ...]
    pieces: tuple[Piece, ...]
    length: int

    @property
    def forced(self) -> tuple[int, ...] | None:
        """The whole output, where all of it is forced."""
        if any(piece.free for piece in self.pieces):
            return None
        return tuple(id_ for piece in self.pieces for id_ in piece.forced)[: self.length]


def workloads(tokenizer: Encoder, *, others: bool = False) -> dict[str, list[Request]]:
    """All requests by workload: code, prose, copy, mixed and adversarial.

    Args:
        tokenizer: Of the bundled models.
        others: As many other ones, on which no constant was chosen. Their texts are those of the
            Python that runs this.
    """
    first = REQUESTS if others else 0
    makers: Mapping[str, Callable[[Encoder, int], Request]] = {
        "code": _code,
        "prose": _prose,
        "copy": _copy,
        "mixed": _mixed,
        "adversarial": _adversarial,
    }
    return {
        name: [make(tokenizer, index) for index in range(first, first + REQUESTS)]
        for name, make in makers.items()
    }


def _code(tokenizer: Encoder, index: int) -> Request:
    return _continued(tokenizer, "code", index)


def _prose(tokenizer: Encoder, index: int) -> Request:
    return _continued(tokenizer, "prose", index)


def _continued(tokenizer: Encoder, kind: str, index: int) -> Request:
    """What the target says after a bundled prompt, or after the beginning of a text."""
    prompts = _bundled(kind)
    if index < len(prompts):
        return _spoken(tokenizer.encode(prompts[index]))
    return _spoken(tokenizer.encode(_text(kind, index))[:120])


def _copy(tokenizer: Encoder, index: int) -> Request:
    """The prompt's own text comes again, with a few words changed in every copy."""
    passage = _text("code" if index % 2 else "prose", index)
    prompt = tokenizer.encode(passage)[:SHORT]
    edited = tokenizer.encode(_edited(passage, random.Random(index)))
    return Request(tuple(prompt), (Piece(tuple(edited)),), min(SHORT, len(edited)))


def _mixed(tokenizer: Encoder, index: int) -> Request:
    """Code, prose, a copy of the code with edits, other prose, other code."""
    code, prose = _text("code", index), _text("prose", index)
    following = index - index % REQUESTS + (index + 1) % REQUESTS
    function = "\n".join(code.splitlines()[:8])
    copied = tokenizer.encode("\n\n" + _edited(function, random.Random(index)))
    start = "\n\n" + "\n".join(prose.splitlines()[:4])
    other = "\n\n" + "\n".join(_text("code", following).splitlines()[:3])
    last = "\n\n" + "\n".join(_text("prose", following).splitlines()[3:6])
    pieces = (
        Piece(free=TURN),
        Piece(tuple(tokenizer.encode(start)), TURN),
        Piece(tuple(copied), 0),
        Piece(tuple(tokenizer.encode(other)), TURN),
        Piece(tuple(tokenizer.encode(last)), LONG),
    )
    return Request(tuple(tokenizer.encode(function)), pieces, LONG)


def _adversarial(tokenizer: Encoder, index: int) -> Request:
    """Nothing that could be guessed: random ids, or the words of a text in random order."""
    chance = random.Random(index)
    text = _text("code" if index % 4 == 1 else "prose", index)
    if index % 2:
        words = text.split()
        chance.shuffle(words)
        output = tokenizer.encode(" ".join(words))
    else:
        output = [chance.randrange(1, 1024) for _ in range(SHORT)]
    return Request(tuple(tokenizer.encode(text)[:96]), (Piece(tuple(output)),), SHORT)


def _spoken(prompt: list[int]) -> Request:
    return Request(tuple(prompt), (Piece(free=LONG),), LONG)


def _edited(text: str, chance: random.Random) -> str:
    """The text with one long word in ten replaced by another of the same text."""
    words = WORD.findall(text)

    def edit(found: re.Match[str]) -> str:
        return chance.choice(words) if chance.random() < EDITED else found[0]

    return WORD.sub(edit, text)


def _text(kind: str, index: int) -> str:
    if index >= REQUESTS:
        name, start = OTHERS[kind][index % REQUESTS]
        whole = topics.topics[name] if kind == "prose" else _source(name)
        return whole[whole.index("\n", start) + 1 :][:CUT]
    return (TEXTS / f"{kind}_{index % REQUESTS + 1}.txt").read_text(encoding="utf-8")


def _source(module: str) -> str:
    return inspect.getsource(importlib.import_module(module))


def _bundled(kind: str) -> list[str]:
    folder = demo_folder("hybrid").parent / "prompts"
    return [path.read_text(encoding="utf-8") for path in sorted(folder.glob(f"{kind}_*.txt"))]
