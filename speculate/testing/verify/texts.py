"""Whether the text is plain decoding's, whoever drafts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Final, cast

import mlx.core as mx

from speculate.decoding.decoder import Decoder
from speculate.protocols import Strategy
from speculate.sampling.options import Sampling
from speculate.strategies.adaptive import Adaptive
from speculate.strategies.fixed import Fixed
from speculate.testing.verify.drafters import Drafter
from speculate.testing.verify.plain import PlainText, place
from speculate.testing.verify.results import Difference, Result
from speculate.testing.verify.rounding import Rounding
from speculate.testing.verify.second_look import second_look
from speculate.testing.verify.subject import Subject

DEPTHS: Final = (1, 2, 3, 4, 5)
TEMPERATURE: Final = 0.8

MOST: Final = 16
"""Differences of one text, after which it is followed no further."""

ROTATED: Final = 1e-4
"""How far mlx-lm's own single steps are off, in units of the largest logit, once a window has
wrapped: it holds the rows in another order then."""


def coupled(seed: int) -> Sampling:
    """How texts are sampled. Near the edges of a filter rounding could do more than swap tokens."""
    return Sampling(temperature=TEMPERATURE, seed=seed)


def follow(
    subject: Subject, plain: PlainText, strategy: Strategy, how: str, start: int = 0
) -> tuple[int, list[Difference]]:
    """Decode a text, and compare it token by token.

    After a difference, and after an id that ends a text, decoding begins again behind what plain
    decoding gave there: so each difference counts, and not only the first.

    Args:
        subject: The model.
        plain: What it ought to be.
        strategy: Who drafts, and how much.
        how: The same in words.
        start: Tokens of the plain text that are taken as given.

    Returns:
        Tokens that were compared, and where they differ.
    """
    decoder = Decoder(subject.model, strategy, plain.sampling)
    done, found = start, list[Difference]()
    while done < len(plain.places) and len(found) < MOST:
        text = [*plain.prompt, *plain.ids[:done]]
        with closing(decoder.generate(text, len(plain.places) - done)) as tokens:
            for token in tokens:
                place, position = plain.places[done], len(plain.prompt) + done
                done += 1
                if token.id != place.token:
                    found.append(place.difference(position, token.id, subject.rounding, how))
                    break
    return done - start, _again(subject, plain, found)


def text_by(
    subject: Subject, drafter: Drafter, sampling: Sampling, depths: Sequence[int] = DEPTHS
) -> Result:
    """One proposer, at several depths."""
    plain, compared, differences = subject.plain(sampling), 0, list[Difference]()
    for depth in depths:
        strategy, how = Fixed(drafter.make(), depth), f"{drafter.name}, depth {depth}"
        count, found = follow(subject, plain, strategy, how)
        compared += count
        differences += found
    return Result(compared, "tokens", differences)


def text_by_all(subject: Subject, sampling: Sampling) -> Result:
    """A strategy that switches between all proposers, by a fixed table of costs."""
    proposers = [drafter.make() for drafter in subject.drafters]
    strategy = Adaptive(*proposers, clock="fixed")
    compared, differences = follow(subject, subject.plain(sampling), strategy, "adaptive")
    return Result(compared, "tokens", differences)


def text_by_mlx_lm(subject: Subject, sampling: Sampling) -> Result:
    """mlx-lm's own model, token by token over the plain text: would it have said the same?"""
    plain, oracle = subject.plain(sampling), subject.oracle
    caches, differences = oracle.caches(), list[Difference]()
    oracle.feed(plain.prompt[:-1], caches)
    fed = [plain.prompt[-1], *plain.ids[:-1]]
    for index, token in enumerate(fed):
        logits = oracle.feed([token], caches)
        position = len(plain.prompt) + index
        found = place(logits, sampling, position).token
        if found != plain.places[index].token:
            rounding = _as_rotated(subject, logits)
            expected = plain.places[index]
            differences.append(expected.difference(position, found, rounding, "mlx-lm"))
    return Result(len(fed), "tokens", _again(subject, plain, differences))


def _again(subject: Subject, plain: PlainText, found: Sequence[Difference]) -> list[Difference]:
    """A second look at tokens: each is chosen by the logits of the one before."""
    ids, first = [*plain.prompt, *plain.ids[:-1]], len(plain.prompt) - 1
    return second_look(subject, found, ids, first, first + 1)


def _as_rotated(subject: Subject, logits: mx.array) -> Rounding:
    """What rounding can explain of single steps by mlx-lm."""
    if not subject.window:
        return subject.rounding
    largest = cast(float, mx.abs(logits).max().item())
    return Rounding(max(subject.rounding.noise, ROTATED * largest))
