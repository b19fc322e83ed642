"""What should come out, worked out on its own in float64, and how far counts are from it."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from speculate import Sampling
from speculate.testing.samplers import chi_square

Floats = NDArray[np.float64]
Outcome = tuple[int, ...]
"""Tokens that one round, or the beginning of a text, gave."""

CHANCE: Final = 1e-9
"""A correct distribution is rejected less often than this."""


# The target's distribution, as mlx-lm's documentation describes it.


def distribution(logits: Floats, options: Sampling, history: Sequence[int] = ()) -> Floats:
    """Probabilities of the next token after a text. XTC's coin is averaged over."""
    logprobs = _log_softmax(_penalised(logits.astype(np.float64), options, history))
    logprobs = _top_p(logprobs, options.top_p)
    if options.min_p > 0:
        least = logprobs.max() + math.log(options.min_p)
        logprobs = np.where(logprobs >= least, logprobs, -np.inf)
    cut = _tempered(_xtc(logprobs, options.xtc_threshold), options)
    chance = options.xtc_probability
    return (1 - chance) * _tempered(logprobs, options) + chance * cut


def _penalised(logits: Floats, options: Sampling, history: Sequence[int]) -> Floats:
    logits = logits.copy()
    for id_, bias in (options.logit_bias or {}).items():
        logits[id_] += bias
    for id_ in set(history[-options.repetition_context_size :]):
        factor = options.repetition_penalty or 1.0
        logits[id_] *= factor if logits[id_] < 0 else 1 / factor
    for id_ in set(history[-options.presence_context_size :]):
        logits[id_] -= options.presence_penalty or 0.0
    for id_ in history[-options.frequency_context_size :]:
        logits[id_] -= options.frequency_penalty or 0.0
    return logits


def _top_p(logprobs: Floats, p: float) -> Floats:
    if not 0 < p < 1:
        return logprobs
    probs = np.exp(logprobs)
    kept = [i for i, one in enumerate(probs) if probs[probs > one].sum() < p * probs.sum()]
    return np.where(np.isin(np.arange(len(probs)), kept), logprobs, -np.inf)


def _xtc(logprobs: Floats, threshold: float) -> Floats:
    probs = np.exp(_log_softmax(logprobs))
    if not (probs > threshold).any():
        return logprobs
    least = probs[probs > threshold].min()
    return np.where(probs > least, -np.inf, logprobs)


def _tempered(logprobs: Floats, options: Sampling) -> Floats:
    if options.top_k:
        best = np.argsort(-logprobs, kind="stable")[: options.top_k]
        logprobs = np.where(np.isin(np.arange(len(logprobs)), best), logprobs, -np.inf)
    found: Floats = np.exp(_log_softmax(logprobs / options.temperature))
    return found


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max()
    found: Floats = shifted - np.log(np.exp(shifted).sum())
    return found


# What one round gives: each outcome is the accepted drafts and one token more.


def overlap(mode: str, p: Floats, q: Floats, *, certain: bool = False) -> Floats:
    """Probability that each token is drafted from q and accepted."""
    if mode != "coupled" or certain:
        return np.minimum(p, q)
    both = (p > 0) & (q > 0)
    shared = np.zeros(len(p))
    for i in np.flatnonzero(both):
        ratios = np.maximum(p / p[i], q / q[i])
        shared[i] = 1 / ratios.sum()
    return shared


def round_by_token(p: Floats, shared: Floats, start: int, depth: int) -> dict[Outcome, float]:
    """Outcomes if drafts are verified one by one.

    Args:
        p: `(vocabulary, vocabulary)`, the target's distribution after each token.
        shared: Its `overlap` with the drafts'.
        start: The last token.
        depth: Drafts.
    """
    found: dict[Outcome, float] = {}

    def walk(path: Outcome, weight: float) -> None:
        last_token = path[-1] if path else start
        own = p[last_token] if len(path) == depth else p[last_token] - shared[last_token]
        for token, chance in enumerate(own):
            found[(*path, token)] = weight * chance
        if len(path) < depth:
            for token, chance in enumerate(shared[last_token]):
                if chance > 0:
                    walk((*path, token), weight * chance)

    walk((), 1.0)
    return found


def round_by_block(p: Floats, q: Floats, start: int, depth: int) -> dict[Outcome, float]:
    """Outcomes of block verification: algorithm 2 of arXiv 2403.10444, over all drafts."""
    found: dict[Outcome, float] = {}
    for path in itertools.product(range(len(p)), repeat=depth):
        text = (start, *path)
        drafted = math.prod(q[a, b] for a, b in itertools.pairwise(text))
        if drafted == 0:
            continue
        weights, rests = _block_weights(p, q, text)
        not_longer = 1.0
        for kept in range(depth, -1, -1):
            stands = _block_chance(weights[kept], rests[kept].sum(), kept, depth)
            chance = drafted * not_longer * stands
            not_longer *= 1 - stands
            if chance > 0:
                own = rests[kept] / rests[kept].sum()
                for token, one in enumerate(own):
                    outcome = (*path[:kept], token)
                    found[outcome] = found.get(outcome, 0.0) + chance * one
    return found


def _block_weights(p: Floats, q: Floats, text: Outcome) -> tuple[list[float], list[Floats]]:
    """For each number of accepted drafts: its weight, and the distribution of the next token."""
    weights = [1.0]
    for a, b in itertools.pairwise(text):
        weights.append(min(weights[-1] * p[a, b] / q[a, b], 1.0))
    rests = [
        np.maximum(weight * p[token] - q[token], 0)
        for weight, token in zip(weights[:-1], text[:-1], strict=True)
    ]
    return weights, [*rests, p[text[-1]]]


def _block_chance(weight: float, rest: float, kept: int, depth: int) -> float:
    if kept == 0:
        return 1.0
    if kept == depth:
        return weight
    return float(rest / (rest + 1 - weight)) if rest > 0 else 0.0


def mean_accepted(outcomes: Mapping[Outcome, float]) -> float:
    """Mean number of accepted drafts per round."""
    return sum((len(outcome) - 1) * chance for outcome, chance in outcomes.items())


# How far counts are from a distribution.


def joint(after: Callable[[Outcome], Floats], count: int) -> dict[Outcome, float]:
    """Distribution of the next `count` tokens, given that of one token `after` all before it."""
    found: dict[Outcome, float] = {(): 1.0}
    for _ in range(count):
        found = dict(_extended(after, found))
    return found


def _extended(
    after: Callable[[Outcome], Floats], paths: Mapping[Outcome, float]
) -> Iterator[tuple[Outcome, float]]:
    for path, chance in paths.items():
        for token, one in enumerate(after(path)):
            if one > 0:
                yield (*path, token), chance * one


def p_value(seen: Iterable[Outcome], expected: Mapping[Outcome, float]) -> float:
    """Chance of counts at least as far from the expected ones; 0 for an impossible outcome."""
    counts = Counter(seen)
    total = counts.total()
    if any(expected.get(outcome, 0.0) <= 0 for outcome in counts):
        return 0.0
    assert abs(sum(expected.values()) - 1) < 1e-9
    pairs = [(counts[outcome], total * chance) for outcome, chance in expected.items()]
    return chi_square(pairs)
