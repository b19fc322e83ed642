"""Whether as many drafts are accepted as there should be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, final

import attrs
import mlx.core as mx

from speculate.decoding.decoder import Decoder
from speculate.protocols import Choice, Round
from speculate.sampling.coupled import Coupled
from speculate.sampling.greedy import Greedy
from speculate.sampling.law import Law
from speculate.sampling.options import Sampling
from speculate.sampling.rules import Chooser
from speculate.strategies.fixed import Fixed
from speculate.testing.fakes import RecordingObserver
from speculate.testing.verify.drafters import Drafter
from speculate.testing.verify.results import Difference, Kind, Result
from speculate.testing.verify.subject import Subject

DEPTH: Final = 4
SIGMAS: Final = 3.0


@final
@attrs.frozen
class Audited:
    """A round that drafted.

    Attributes:
        position: Tokens of text in front of it.
        drafted: Tokens that were drafted.
        online: How many of them were accepted.
        offline: How many would have been, of drafts made from the text alone.
    """

    position: int
    drafted: int
    online: int
    offline: int

    def difference(self, kind: Kind) -> Difference:
        """That the two are not the same."""
        detail = f"{self.online} of {self.drafted} drafts accepted, and {self.offline} offline"
        return Difference(self.position, abs(self.online - self.offline), None, kind, detail)


def acceptance_is_the_drafters_own(
    subject: Subject, drafter: Drafter, sampling: Sampling, depth: int = DEPTH
) -> Result:
    """Decode a text, and then draft again at the places where its rounds did.

    A drafter out of step with the text changes no token, and costs acceptance: nothing else
    shows it. Where blocks round like single rows both are equal, round by round; elsewhere
    the totals agree within 3 standard deviations.
    """
    audited = audit(subject, drafter, sampling, depth)
    drafted, online = sum(one.drafted for one in audited), sum(one.online for one in audited)
    offline = sum(one.offline for one in audited)
    near = abs(online - offline) <= _allowed(subject, offline, drafted)
    wrong = [one for one in audited if one.online != one.offline]
    differences = [one.difference("numerics" if near else "bug") for one in wrong]
    note = f"of {drafted} drafts {online} accepted, offline {offline}"
    return Result(len(audited), "rounds", differences, note)


def _allowed(subject: Subject, accepted: int, drafted: int) -> float:
    """By how much totals may differ; less than 0 where not a single round may."""
    if subject.rounding.noise == 0:
        return -1.0
    # A rate of 0 or 1 in so few drafts is no certainty (Laplace's rule of succession).
    rate = (accepted + 1) / (drafted + 2)
    return SIGMAS * math.sqrt(drafted * rate * (1 - rate))


def audit(subject: Subject, drafter: Drafter, sampling: Sampling, depth: int) -> list[Audited]:
    """What was accepted in each round, and what should have been."""
    text, rounds = _decoded(subject, drafter, sampling, depth)
    redraft, chooser = drafter.offline(subject.model, text), _chooser(sampling)
    audited = []
    for round in rounds:
        start = round.context

        def choose(logits: mx.array, index: int, start: int = start) -> Choice:
            return chooser.choose(logits, start + index)

        if round.drafted:
            drafts = redraft(start, round.drafted, choose)
            # What an end of the text cut off was never judged.
            most = round.emitted if round.cut else round.drafted
            offline = min(most, _leading(drafts, text[start:]))
            audited.append(Audited(start, round.drafted, round.accepted, offline))
    return audited


def _decoded(
    subject: Subject, drafter: Drafter, sampling: Sampling, depth: int
) -> tuple[list[int], Sequence[Round]]:
    """A text with its prompt, straight on over ids that end it, and the rounds that it took."""
    observer = RecordingObserver()
    decoder = Decoder(subject.model, Fixed(drafter.make(), depth), sampling, observer=observer)
    text = [*subject.prompt]
    while (left := len(subject.prompt) + subject.tokens - len(text)) > 0:
        text += [token.id for token in decoder.generate(text, left)]
    return text, observer.rounds


def _leading(drafts: Sequence[int], text: Sequence[int]) -> int:
    """Drafts in front of the first wrong one."""
    wrong = (n for n, (a, b) in enumerate(zip(drafts, text, strict=False)) if a != b)
    return next(wrong, min(len(drafts), len(text)))


def _chooser(sampling: Sampling) -> Chooser:
    return Coupled(Law(sampling, sampling.seed or 0)) if sampling.temperature else Greedy()
