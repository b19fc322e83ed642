"""The same texts, decoded in every way, one way after the other."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import final

import attrs

from benchmarks import report
from benchmarks.clock import now as clock
from benchmarks.contestants import Way
from benchmarks.spread import Spread
from benchmarks.turns import in_turns


@final
@attrs.frozen
class Decoded:
    """A text that was decoded in one way.

    Attributes:
        ids: The tokens.
        rate: Tokens a second, from the first round's last token on.
        rounds: How many there were.
    """

    ids: Sequence[int]
    rate: float
    rounds: int


Measured = Callable[[Sequence[int], int], Decoded]
"""Decodes so many tokens behind a prompt."""

Rates = Mapping[str, Sequence[Sequence[float]]]
"""Tokens a second of each way: of each text, of each turn."""


@final
@attrs.frozen
class Comparison:
    """What came out.

    Attributes:
        rates: Of every way.
        rounds: Tokens a round of every way, on average.
        same: Whether all ways gave the same texts.
    """

    rates: Rates
    rounds: Mapping[str, float]
    same: bool


def decode(way: Way, prompt: Sequence[int], tokens: int) -> Decoded:
    """Decode a text.

    The first round is left out: how long it took cannot be told from taking in the prompt.
    """
    ids, began, timed, rounds, now = list[int](), 0.0, 0, 0, 0.0
    for token, from_draft in islice(way(prompt), tokens):
        now = clock()
        ids.append(token)
        rounds += not from_draft
        if rounds == 1 and not from_draft:
            began, timed = now, len(ids)
    return Decoded(ids, (len(ids) - timed) / (now - began), rounds)


def measured(ways: Mapping[str, Way]) -> dict[str, Measured]:
    """Ways, as `compare` takes them."""
    return {name: _measured(way) for name, way in ways.items()}


def _measured(way: Way) -> Measured:
    return lambda prompt, tokens: decode(way, prompt, tokens)


def compare(
    ways: Mapping[str, Measured],
    prompts: Sequence[Sequence[int]],
    tokens: int,
    turns: int = 2,
) -> Comparison:
    """Decode each text in each way, in both orders: every other text begins with the last way.

    Args:
        ways: By name.
        prompts: Ids.
        tokens: Of each text.
        turns: How often each way decodes a text.
    """
    rates: dict[str, list[list[float]]] = {name: [] for name in ways}
    rounds: dict[str, list[float]] = {name: [] for name in ways}
    same = True
    for index, prompt in enumerate(prompts):
        texts = set()
        for turn, name in in_turns(list(ways)[:: -1 if index % 2 else 1], turns):
            found = ways[name](prompt, tokens)
            if not turn:
                rates[name].append([])
            rates[name][-1].append(found.rate)
            rounds[name].append(len(found.ids) / found.rounds)
            texts.add(tuple(found.ids))
        same &= len(texts) == 1
        report.progress(f"  text {index + 1} of {len(prompts)}")
    means = {name: statistics.fmean(of) for name, of in rounds.items()}
    return Comparison(rates, means, same)


def ratio(rates: Rates, name: str, over: str) -> Spread:
    """Of two ways' rates, text by text and turn by turn."""
    return Spread.of(
        [
            one / other
            for own, others in zip(rates[name], rates[over], strict=True)
            for one, other in zip(own, others, strict=True)
        ]
    )


def rate(rates: Rates, name: str) -> float:
    """Median tokens a second of a way."""
    return Spread.of([one for text in rates[name] for one in text]).median
