"""Checks of decoding with drafts: emitted sequences, seeds, and acceptance of drafts."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Final, cast, final

import attrs
import mlx.core as mx

from speculate._mx import to_ints
from speculate.decoding.decoder import Decoder
from speculate.protocols import DraftSampler, Plan, Proposer, Round, Strategy
from speculate.sampling.acceptance import Coupled, Greedy
from speculate.sampling.filters import Distribution
from speculate.sampling.options import Sampling
from speculate.strategies.adaptive import Adaptive
from speculate.strategies.fixed import Fixed, Off
from speculate.verify.oracle import ReferenceSequence, reference_token
from speculate.verify.rounding import Difference, Result, Rounding
from speculate.verify.target import Drafter, RecordingProposer, VerificationTarget

DEPTHS: Final = (1, 2, 3, 4, 5)
"""Draft depths, in tokens, at which a proposer's sequence is checked."""

MAX_DIFFERENCES: Final = 16
"""Differences in one sequence after which it is not decoded further."""

AUDITED_DEPTH: Final = 4
"""Draft depth, in tokens, at which acceptance is checked."""

Run = tuple[str, int, Strategy]
"""A decoding in words, how many tokens of the reference belong to its prompt, and its strategy."""


def coupled_sampling(seed: int) -> Sampling:
    """Options of sampled runs.

    Without filters: near the edge of one, rounding could do more than swap two tokens.
    """
    return Sampling(temperature=0.8, seed=seed)


def check_sequence(
    target: VerificationTarget,
    drafter: Drafter,
    sampling: Sampling,
    depths: Sequence[int] = DEPTHS,
) -> Result:
    """Compare decoding with one proposer, at several depths, with plain decoding."""
    runs = ((f"{drafter.name}, depth {n}", 0, Fixed(drafter.make(), n)) for n in depths)
    return _compare_runs(target, target.reference(sampling), runs)


def check_adaptive_sequence(target: VerificationTarget, sampling: Sampling) -> Result:
    """Compare decoding with `Adaptive`, all proposers and fixed costs, with plain decoding."""
    strategy = Adaptive(*(drafter.make() for drafter in target.drafters), clock="fixed")
    return _compare_runs(target, target.reference(sampling), [("adaptive", 0, strategy)])


def check_stock_sequence(target: VerificationTarget, sampling: Sampling) -> Result:
    """Compare plain decoding with mlx-lm's model, fed the same sequence token by token."""
    reference, oracle = target.reference(sampling), target.oracle
    caches, differences = oracle.caches(), list[Difference]()
    oracle.feed(reference.prompt[:-1], caches)
    fed = [reference.prompt[-1], *reference.ids[:-1]]
    for index, token in enumerate(fed):
        logits = oracle.feed([token], caches)
        position = len(reference.prompt) + index
        found, expected = reference_token(logits, sampling, position), reference.tokens[index]
        if found.token != expected.token:
            noise = target.rounding.noise
            if target.window:
                # Once a window has wrapped, mlx-lm stores its rows in another order.
                noise = max(noise, 1e-4 * cast(float, mx.abs(logits).max().item()))
            rounding = Rounding(noise)
            differences.append(expected.difference(position, found.token, rounding, "mlx-lm"))
    return Result(len(fed), "tokens", _rechecked(target, reference, differences))


def check_seed(target: VerificationTarget, seed: int) -> Result:
    """Compare sampled runs of one seed: off, with each proposer, alternating, from the middle.

    An implementation that draws from a shared random state gives another sequence each time.
    """
    drafters, reference = target.drafters, target.reference(coupled_sampling(seed))
    one, other = (AlternatingStrategy(drafters, seed + n) for n in range(2))
    runs: list[Run] = [
        ("off", 0, Off()),
        *((f"{drafter.name}, depth 4", 0, Fixed(drafter.make(), 4)) for drafter in drafters),
        ("alternating", 0, one),
        ("alternating, from the middle", target.tokens // 2, other),
        ("off, again", 0, Off()),
    ]
    return _compare_runs(target, reference, runs)


def check_acceptance(
    target: VerificationTarget, drafter: Drafter, sampling: Sampling, depth: int = AUDITED_DEPTH
) -> Result:
    """Decode a sequence, and recompute each of its drafts from the sequence alone.

    A proposer out of step with the sequence changes no token but lowers acceptance, and no other
    check shows that. Where blocks round like single rows, all drafts must be equal. Elsewhere the
    number of accepted drafts must agree within 3 standard deviations.
    """
    ids, rounds, drafts = _decoded(target, drafter, sampling, depth)
    redraft, differences = drafter.offline(target.model, ids), list[Difference]()
    drafted = accepted = expected = 0
    for round, (limit, tokens) in zip(rounds, drafts, strict=True):
        start, found = round.context, to_ints(tokens)
        again = redraft(start, limit, _draft_sampler(sampling, start))
        # Drafts after the end of the sequence were never verified.
        most = round.emitted if round.truncated else round.drafted
        wrong = [one != other for one, other in zip(again, ids[start:], strict=False)]
        correct = min(most, [*wrong, True].index(True))
        drafted += len(found)
        accepted += round.accepted
        expected += correct
        if (found, round.accepted) != (again, correct):
            counts = f"{round.accepted} and {correct} accepted"
            detail = f"drafted {found}, expected {again}: {counts}"
            apart = abs(round.accepted - correct)
            differences.append(Difference(start, apart, None, "bug", detail))
    # Laplace's rule of succession: with few drafts, none or all accepted is no certainty.
    rate = (expected + 1) / (drafted + 2)
    standard_deviation = math.sqrt(drafted * rate * (1 - rate))
    if target.rounding.noise and abs(accepted - expected) <= 3 * standard_deviation:
        differences = [attrs.evolve(one, kind="numerics") for one in differences]
    note = f"{accepted} of {drafted} drafts accepted, {expected} expected"
    return Result(len(rounds), "rounds", differences, note)


def compare_decoding(
    target: VerificationTarget,
    reference: ReferenceSequence,
    strategy: Strategy,
    how: str,
    start: int = 0,
) -> tuple[int, list[Difference]]:
    """Decode a sequence, and compare it token by token.

    After a difference, and after an end-of-sequence id, decoding restarts from the reference. So
    every difference counts, and not only the first one. The prompt is that of the reference, and
    the first `start` tokens. Returns the number of compared tokens, and the differences.
    """
    decoder = Decoder(target.model, strategy, reference.sampling)
    done, found = start, list[Difference]()
    while done < len(reference.tokens) and len(found) < MAX_DIFFERENCES:
        prompt = [*reference.prompt, *reference.ids[:done]]
        with closing(decoder.generate(prompt, len(reference.tokens) - done)) as tokens:
            for token in tokens:
                expected, position = reference.tokens[done], len(reference.prompt) + done
                done += 1
                if token.id != expected.token:
                    found.append(expected.difference(position, token.id, target.rounding, how))
                    break
    return done - start, _rechecked(target, reference, found)


@final
class AlternatingStrategy:
    """A strategy that picks a proposer, if there is one, and a depth at random in every round."""

    def __init__(self, drafters: Sequence[Drafter], seed: int) -> None:
        self.proposers: Sequence[Proposer] = [drafter.make() for drafter in drafters]
        self._dice = random.Random(seed)

    def begin(self) -> None:
        """Start a sequence: nothing to reset."""

    def plan(self, remaining: int | None, /) -> Plan:
        depth = self._dice.choice((4, 0, 1, 2, 7)) if self.proposers else 0
        return Plan(self._dice.choice(self.proposers), depth) if depth else Plan()

    def observe(self, round: Round, /) -> None:
        """Learns nothing."""


def _compare_runs(
    target: VerificationTarget, reference: ReferenceSequence, runs: Iterable[Run]
) -> Result:
    """Compare several decodings of one sequence."""
    compared, differences = 0, list[Difference]()
    for how, start, strategy in runs:
        count, found = compare_decoding(target, reference, strategy, how, start)
        compared += count
        differences += found
    return Result(compared, "tokens", differences)


def _rechecked(
    target: VerificationTarget, reference: ReferenceSequence, found: Sequence[Difference]
) -> list[Difference]:
    """Recheck differences of tokens: each was chosen by the logits of the token before it."""
    ids, first = [*reference.prompt, *reference.ids[:-1]], len(reference.prompt) - 1
    return target.recheck(found, ids, first, first + 1)


def _decoded(
    target: VerificationTarget, drafter: Drafter, sampling: Sampling, depth: int
) -> tuple[list[int], list[Round], list[tuple[int, mx.array]]]:
    """Decode past end-of-sequence ids: prompt and tokens, rounds with a draft, their drafts."""
    rounds, proposer = list[Round](), RecordingProposer(drafter.make())
    decoder = Decoder(target.model, Fixed(proposer, depth), sampling, observer=rounds.append)
    ids = [*target.prompt]
    while (left := len(target.prompt) + target.tokens - len(ids)) > 0:
        ids += [token.id for token in decoder.generate(ids, left)]
    return ids, [round for round in rounds if round.drafted], proposer.drafts


def _draft_sampler(sampling: Sampling, start: int) -> DraftSampler:
    """Samples the drafts that follow `start` tokens."""
    distribution = Distribution(sampling, sampling.seed or 0)
    chooser = Coupled(distribution) if sampling.temperature else Greedy()
    return lambda logits, index: chooser.choose(logits, start + index)
