"""The models that are really run, and one decoding with them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, final

import attrs

import speculate as sp
from benchmarks.forcing import ForcedModel
from benchmarks.grow import grown_draft, grown_hybrid
from benchmarks.strategy.gauge import measure_costs
from benchmarks.strategy.hindsight import Arm, proposer_of
from benchmarks.strategy.recording import Recording
from speculate.protocols import Costs, Proposer, Round, SpeculativeModel, Strategy

HIDDEN: Final = 1024
LAYERS: Final = 24
DRAFT_HIDDEN: Final = 512
DRAFT_LAYERS: Final = 4


@final
@attrs.frozen
class Models:
    """A target with its head, and a draft model."""

    target: SpeculativeModel
    draft: SpeculativeModel

    def proposers(self) -> Sequence[Proposer]:
        """One of each kind."""
        return sp.MTPChain(), sp.DraftModel(self.draft), sp.PromptLookup()

    def costs(self, prompt: Sequence[int]) -> Costs:
        """What forwards and drafts cost behind a prompt."""
        return measure_costs(self.target, self.proposers(), prompt)

    def fixed(self, arm: Arm) -> Strategy:
        """A fixed choice."""
        proposer = proposer_of(arm, self.proposers())
        return sp.Off() if proposer is None else sp.Fixed(proposer, arm.depth)


def grown() -> Models:
    """The bundled models, grown."""
    return Models(grown_hybrid(HIDDEN, LAYERS)[0], grown_draft(DRAFT_HIDDEN, DRAFT_LAYERS)[0])


@final
@attrs.frozen
class Timed:
    """One decoding.

    Attributes:
        times: At which each token was there, from the first one on, in seconds.
        rounds: What was done.
    """

    times: Sequence[float]
    rounds: Sequence[Round]


def decode(models: Models, recording: Recording, strategy: Strategy) -> Timed:
    """Decode a request to its recorded text.

    Raises:
        RuntimeError: Another text came out.
    """
    target = ForcedModel(models.target, [*recording.prompt, *recording.output])
    rounds: list[Round] = []
    decoder = sp.Decoder(target, strategy, observer=rounds.append)
    clock, ids = [], []
    for token in decoder.generate(recording.prompt, max_tokens=len(recording.output)):
        clock.append(time.perf_counter())
        ids.append(token.id)
    if ids != list(recording.output):
        raise RuntimeError(f"{recording.workload} {recording.request}: another text came out")
    return Timed([moment - clock[0] for moment in clock], rounds)
