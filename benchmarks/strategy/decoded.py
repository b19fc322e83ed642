"""One request, really decoded to the text of its recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final, final

import attrs
import mlx.core as mx

import speculate as sp
from benchmarks.clock import now
from benchmarks.forcing import ForcedModel
from benchmarks.pair import Pair
from benchmarks.strategy.fixed_choices import Arm, proposer_of
from benchmarks.strategy.recording import Recording
from speculate.protocols import Proposer, Round, Strategy

PIECE: Final = 16
"""Tokens of a turn."""


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


@final
class Decoding:
    """A request that is decoded piece by piece, and timed while it is.

    Args:
        pair: The models.
        recording: The request.
        strategy: Who drafts, and how much.
    """

    def __init__(self, pair: Pair, recording: Recording, strategy: Strategy) -> None:
        self._recording = recording
        target = ForcedModel(pair.target, [*recording.prompt, *recording.output])
        self._rounds: list[Round] = []
        decoder = sp.Decoder(target, strategy, observer=self._rounds.append)
        self._tokens = decoder.generate(recording.prompt, max_tokens=len(recording.output))
        self._ids = [next(self._tokens).id]
        self._times = [0.0]

    def advance(self, count: int) -> None:
        """Decode that many tokens, or what is left, and let the device finish."""
        began, before = now(), self._times[-1]
        for token in islice(self._tokens, count):
            self._ids.append(token.id)
            self._times.append(before + now() - began)
        mx.synchronize()
        self._times[-1] = before + now() - began

    @property
    def left(self) -> int:
        """Tokens still to be decoded."""
        return len(self._recording.output) - len(self._ids)

    def done(self) -> Timed:
        """What came out.

        Raises:
            RuntimeError: Another text did.
        """
        self._tokens.close()
        if self._ids != list(self._recording.output):
            name = f"{self._recording.workload} {self._recording.request}"
            raise RuntimeError(f"{name}: another text came out")
        return Timed(self._times, self._rounds)


def in_pieces(decodings: Mapping[str, Decoding], *, reverse: bool) -> dict[str, Timed]:
    """Let decodings of one request take turns, so that a machine that changes favours nobody."""
    names = list(decodings)
    while any(one.left for one in decodings.values()):
        names.reverse()
        for name in names[:: -1 if reverse else 1]:
            decodings[name].advance(PIECE)
    return {name: one.done() for name, one in decodings.items()}


def all_proposers(pair: Pair) -> Sequence[Proposer]:
    """A proposer of each kind."""
    return sp.MTPChain(), sp.DraftModel(pair.draft), sp.PromptLookup()


def fixed(pair: Pair, arm: Arm) -> Strategy:
    """A fixed choice."""
    proposer = proposer_of(arm, all_proposers(pair))
    return sp.Off() if proposer is None else sp.Fixed(proposer, arm.depth)
