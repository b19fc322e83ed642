"""One request, really decoded to the text of its recording."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import attrs

import speculate as sp
from benchmarks.clock import now
from benchmarks.forcing import ForcedModel
from benchmarks.pair import Pair
from benchmarks.strategy.hindsight import Arm, proposer_of
from benchmarks.strategy.recording import Recording
from speculate.protocols import Proposer, Round, Strategy


@final
@attrs.frozen
class Timed:
    """A decoding.

    Attributes:
        times: At which each token was there, from the first one on, in seconds.
        rounds: What was done.
    """

    times: Sequence[float]
    rounds: Sequence[Round]


def decode(pair: Pair, recording: Recording, strategy: Strategy) -> Timed:
    """Decode a request.

    Raises:
        RuntimeError: Another text came out.
    """
    target = ForcedModel(pair.target, [*recording.prompt, *recording.output])
    rounds: list[Round] = []
    decoder = sp.Decoder(target, strategy, observer=rounds.append)
    clock, ids = [], []
    for token in decoder.generate(recording.prompt, max_tokens=len(recording.output)):
        clock.append(now())
        ids.append(token.id)
    if ids != list(recording.output):
        raise RuntimeError(f"{recording.workload} {recording.request}: another text came out")
    return Timed([moment - clock[0] for moment in clock], rounds)


def everyone(pair: Pair) -> Sequence[Proposer]:
    """A proposer of each kind."""
    return sp.MTPChain(), sp.DraftModel(pair.draft), sp.PromptLookup()


def fixed(pair: Pair, arm: Arm) -> Strategy:
    """A fixed choice."""
    proposer = proposer_of(arm, everyone(pair))
    return sp.Off() if proposer is None else sp.Fixed(proposer, arm.depth)
