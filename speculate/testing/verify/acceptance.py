"""Whether as many drafts are accepted as there should be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, final

import attrs
import mlx.core as mx

from speculate.decoding.decoder import Decoder
from speculate.protocols import Choice, Choose, Round
from speculate.sampling.acceptance import Coupled, Greedy
from speculate.sampling.filters import Distribution
from speculate.sampling.options import Sampling
from speculate.strategies.fixed import Fixed
from speculate.testing.fakes import RecordingObserver
from speculate.testing.verify.drafters import Drafter
from speculate.testing.verify.listening import Heard, Listening
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
        online: What was drafted.
        accepted: How much of it was accepted.
        offline: What was drafted there from the text alone.
        deserved: How much of that would have been accepted.
    """

    position: int
    online: Sequence[int]
    accepted: int
    offline: Sequence[int]
    deserved: int

    @property
    def same(self) -> bool:
        """Whether both are equal."""
        return (self.online, self.accepted) == (self.offline, self.deserved)

    def difference(self, kind: Kind) -> Difference:
        """That they are not."""
        apart = abs(self.accepted - self.deserved)
        found, expected = (f"{list(ids)}" for ids in (self.online, self.offline))
        counts = f"{self.accepted} and {self.deserved} accepted"
        detail = f"drafts {found}, offline {expected}: {counts}"
        return Difference(self.position, apart, None, kind, detail)


def acceptance_is_the_drafters_own(
    subject: Subject, drafter: Drafter, sampling: Sampling, depth: int = DEPTH
) -> Result:
    """Decode a text, and then draft again at the places where its rounds did.

    A drafter out of step with the text changes no token, and costs acceptance: nothing else
    shows it. Where blocks round like single rows both make the same drafts in every round;
    elsewhere as many are accepted within 3 standard deviations.
    """
    audited = audit(subject, drafter, sampling, depth)
    drafted = sum(len(one.online) for one in audited)
    accepted = sum(one.accepted for one in audited)
    deserved = sum(one.deserved for one in audited)
    near = abs(accepted - deserved) <= _allowed(subject, deserved, drafted)
    wrong = [one for one in audited if not one.same]
    differences = [one.difference("numerics" if near else "bug") for one in wrong]
    note = f"{accepted} of {drafted} drafts accepted, offline {deserved}"
    return Result(len(audited), "rounds", differences, note)


def _allowed(subject: Subject, accepted: int, drafted: int) -> float:
    """By how much totals may differ; less than 0 where not a single draft may."""
    if subject.rounding.noise == 0:
        return -1.0
    # None or all of so few drafts is no certainty (Laplace's rule of succession).
    rate = (accepted + 1) / (drafted + 2)
    return SIGMAS * math.sqrt(drafted * rate * (1 - rate))


def audit(subject: Subject, drafter: Drafter, sampling: Sampling, depth: int) -> list[Audited]:
    """What was accepted in each round, and what should have been."""
    text, rounds, heard = _decoded(subject, drafter, sampling, depth)
    redraft, audited = drafter.offline(subject.model, text), []
    for round, online in zip(rounds, heard, strict=True):
        start = round.context
        offline = redraft(start, online.limit, _choose(sampling, start))
        # What an end of the text cut off was never judged.
        most = round.emitted if round.cut else round.drafted
        deserved = min(most, _leading(offline, text[start:]))
        audited.append(Audited(start, online.ids(), round.accepted, offline, deserved))
    return audited


def _decoded(
    subject: Subject, drafter: Drafter, sampling: Sampling, depth: int
) -> tuple[list[int], list[Round], list[Heard]]:
    """A text with its prompt, straight on over ids that end it; the rounds that drafted; drafts."""
    observer, proposer = RecordingObserver(), Listening(drafter.make())
    decoder = Decoder(subject.model, Fixed(proposer, depth), sampling, observer=observer)
    text = [*subject.prompt]
    while (left := len(subject.prompt) + subject.tokens - len(text)) > 0:
        text += [token.id for token in decoder.generate(text, left)]
    return text, [round for round in observer.rounds if round.drafted], proposer.heard


def _leading(drafts: Sequence[int], text: Sequence[int]) -> int:
    """Drafts in front of the first wrong one."""
    wrong = (n for n, (a, b) in enumerate(zip(drafts, text, strict=False)) if a != b)
    return next(wrong, min(len(drafts), len(text)))


def _choose(sampling: Sampling, start: int) -> Choose:
    """How drafts behind so many tokens are picked."""
    distribution = Distribution(sampling, sampling.seed or 0)
    chooser = Coupled(distribution) if sampling.temperature else Greedy()

    def choose(logits: mx.array, index: int) -> Choice:
        return chooser.choose(logits, start + index)

    return choose
