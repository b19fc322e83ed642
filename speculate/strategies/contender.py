"""How often a lookup that found nothing finds something one token later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

import attrs

from speculate.protocols import CatchesUp, Foresees, Outlook, Proposer, Round
from speculate.strategies.checking import checked_behind, checked_hindsight, checked_outlook
from speculate.strategies.survival import Survival

LEARNED: Final = 0.05
"""What the newest place counts for."""

RESUMED: Final = 0.1
"""Chance that something is found at the next place, at the least, where a copy has just ended: a
text that was copied and changed goes back to what it copied."""


@final
class Beginnings:
    """Places where something is found, and was not at the place in front.

    A plain round is launched before the last token is read, so that what begins there to be found
    is found too late, unless somebody asks for it at a venture.

    Attributes:
        chance: That something is found at the next place, where nothing is now.
        kind: Of the newest draft that began so; see `Outlook`.
    """

    def __init__(self) -> None:
        self.chance: float = 0.0
        self.kind: int = 0
        self._found = False

    def copy_ended(self) -> None:
        """A draft was right for a while, and then was not."""
        self.chance = max(self.chance, RESUMED)

    def note(self, outlook: Outlook, *, plain: bool) -> None:
        """What is found now.

        Args:
            outlook: Behind all that is known.
            plain: The text went on by a single token.
        """
        found = outlook.length > 0
        if plain and not self._found:
            self.chance += LEARNED * (found - self.chance)
            if found:
                self.kind = outlook.kind
        self._found = found


PRIOR: Final = 0.4
"""Chance that a first draft is right, before any was seen. Published heads reach more; a
guess that is too low costs a round or two, one that is too high costs more."""

SHARED: Final = 0.7
"""How much a proposer that was not seen is expected to be like those that were: where one guesses
badly, others do."""

SIMILAR: Final = 2.0
"""First drafts of any kind that count as much as what a kind's name says of it: where passages
return, short matches are better than they look."""

WAITING: Final = 0.03
"""Plain steps that a plain round takes longer where it could not be launched ahead, because the
lookup was to see its token first."""

HARDLY: Final = 3
"""Drafts of a text that say little of a proposer yet: luck may have made them wrong."""

OTHER_TEXTS: Final = 4.0
"""Comparisons that what was seen in other texts counts for at most, at each position."""


@final
@attrs.frozen
class Offer:
    """What may be done in the next round.

    Attributes:
        contender: Who drafts; `None` for a plain round.
        depth: Tokens to draft.
        tokens: Tokens that the round is expected to give.
        time: Time that it is expected to take, in plain steps.
    """

    contender: Contender | None
    depth: int
    tokens: float
    time: float

    @property
    def rate(self) -> float:
        """Tokens per plain step: the speedup over plain decoding."""
        return self.tokens / self.time

    def after(self, time: float, horizon: int) -> Offer:
        """The same where something takes `time` plain steps first, and `horizon` tokens follow."""
        if not time:
            return self
        return Offer(
            self.contender, self.depth, self.tokens, self.time + time * self.tokens / horizon
        )


PLAIN: Final = Offer(None, 0, 1.0, 1.0)


@final
class Contender:
    """A proposer, and what was learned of it.

    Args:
        proposer: Who drafts.
    """

    def __init__(self, proposer: Proposer) -> None:
        self.proposer = proposer
        self.name: str = proposer.name
        self.failed: bool = False
        self._foresees = proposer if isinstance(proposer, Foresees) else None
        self._catches_up = proposer if isinstance(proposer, CatchesUp) else None
        self._kinds: dict[int, Survival] = {}
        self._all_kinds = Survival(PRIOR)
        self._beginnings = Beginnings()
        self._last_chance = 1.0
        self._drafts = 0
        # The best offers of each look and optimism, with what they follow from.
        self._bests: dict[
            tuple[tuple[int, int], float], tuple[Sequence[float], Sequence[float], Offer]
        ] = {}

    def begin(self) -> None:
        """Another text begins: who failed may draft again, and what was seen counts less."""
        self.failed = False
        self._last_chance, self._drafts = 1.0, 0
        self._kind(0).prior = PRIOR
        # How texts return to what they said differs from text to text.
        self._all_kinds, self._beginnings = Survival(PRIOR), Beginnings()
        for survival in self._kinds.values():
            survival.trust_less(OTHER_TEXTS)

    @property
    def free(self) -> bool:
        """Whether it drafts on the host, from what is known."""
        return self._foresees is not None

    def look(self, deepest: int) -> tuple[int, int]:
        """Kind of the draft that it would make now, and its most tokens; 0 for none."""
        if self.failed:
            return 0, 0
        if self._foresees is None:
            return 0, deepest
        outlook = checked_outlook(self.proposer, self._foresees.outlook())
        return outlook.kind, min(deepest, outlook.length)

    def behind(self) -> int:
        """Tokens that it has to take in before it drafts."""
        if self.failed or self._catches_up is None:
            return 0
        return checked_behind(self.proposer, self._catches_up.behind())

    def looks_better(self) -> bool:
        """Than when it last drafted: what was seen of it is being forgotten, and that is all."""
        return self._kind(0).chances(1)[0] > self._last_chance

    def best(self, times: Sequence[float], look: tuple[int, int], optimism: float = 0.0) -> Offer:
        """The depth with the most tokens per unit of time.

        Args:
            times: Of rounds with 0, 1, 2, ... drafts, in plain steps.
            look: From `look`.
            optimism: See `Survival.chances`.
        """
        kind, deepest = look
        chances = self._expected(kind).chances(deepest, optimism)
        known = self._bests.get((look, optimism))
        # Both are other objects where anything else is to be expected.
        if known is not None and known[0] is chances and known[1] is times:
            return known[2]
        tokens, best, most = 1.0, (0, 1.0), 0.0
        for depth, chance in enumerate(chances, 1):
            tokens += chance
            rate = tokens / times[depth]
            if rate > most:
                best, most = (depth, tokens), rate
        offer = Offer(self, *best, times[best[0]]) if most else PLAIN
        self._bests[look, optimism] = chances, times, offer
        return offer

    def at(self, depth: int, times: Sequence[float], look: tuple[int, int]) -> Offer:
        """The offer at one depth."""
        tokens = 1.0 + sum(self._expected(look[0]).chances(depth))
        return Offer(self, depth, tokens, times[depth])

    def at_a_venture(self, times: Sequence[float], deepest: int) -> Offer:
        """Ask it for a draft though it would have none now: it may have one token later.

        Args:
            times: See `best`.
            deepest: Most tokens.
        """
        often = self._beginnings.chance
        if not often or self.failed:
            return PLAIN
        tokens, best, most = 0.0, (0, 1.0, 1.0), 1.0
        chances = self._expected(self._beginnings.kind).chances(deepest)
        for depth, chance in enumerate(chances, 1):
            tokens += chance
            found = (depth, 1.0 + often * tokens, 1.0 + WAITING + often * (times[depth] - 1.0))
            rate = found[1] / found[2]
            if rate > most:
                best, most = found, rate
        return Offer(self, *best) if best[0] else PLAIN

    @property
    def unseen(self) -> bool:
        """Whether it cannot tell beforehand how right it is, and no draft of it was compared."""
        return self._foresees is None and not self._kind(0).seen

    @property
    def hardly_seen(self) -> bool:
        """Whether it cannot tell beforehand, and few drafts of this text were its own."""
        return self._foresees is None and self._drafts < HARDLY

    @property
    def first_chance(self) -> float | None:
        """That its first draft is right, where it cannot tell beforehand and has been seen."""
        known = self._foresees is None and not self.unseen
        return self._kind(0).chances(1)[0] if known else None

    def expect(self, chance: float) -> None:
        """First drafts of others are right with this chance."""
        if self.unseen:
            # Within a text it only falls: what was seen of others is being forgotten.
            prior = PRIOR + SHARED * (chance - PRIOR)
            self._kind(0).prior = min(prior, self._kind(0).prior)

    def observe(self, round: Round) -> None:
        """Learn from a round, whoever drafted in it."""
        for survival in (*self._kinds.values(), self._all_kinds):
            survival.forget(round.emitted)
        if self.failed:
            return
        if self._foresees is not None:
            # It knows of every place in the text, also of those where others drafted.
            for found in checked_hindsight(self.proposer, self._foresees.hindsight()):
                self._kind(found.kind).note(found.position, found.compared, found.right)
                if found.position == 0:
                    self._all_kinds.note(0, found.compared, found.right)
            outlook = checked_outlook(self.proposer, self._foresees.outlook())
            self._beginnings.note(outlook, plain=not round.drafted)
            if round.proposer == self.name and 0 < round.accepted < round.drafted:
                self._beginnings.copy_ended()
        elif round.proposer == self.name:
            # Where the text ended within the draft, the rest of it was not compared.
            whole = round.emitted > round.accepted
            compared = round.drafted if whole else round.accepted
            self._kind(0).observe(compared, round.accepted)
            self._drafts += 1
            self._last_chance = self._kind(0).chances(1)[0]
        elif round.asked == self.name and not round.cut:
            # No draft is worth as much as a wrong one.
            self._kind(0).observe(1, 0)
            self._drafts += 1

    def _kind(self, kind: int) -> Survival:
        survival = self._kinds.get(kind)
        if survival is None:
            survival = self._kinds[kind] = Survival(PRIOR, agreed=kind)
        return survival

    def _expected(self, kind: int) -> Survival:
        """A kind, with what is to be expected of it before any was seen."""
        survival = self._kind(kind)
        if self._foresees is not None:
            # The more tokens agree, the more likely is the next one to.
            own, seen = 1.0 - 1.0 / kind if kind > 1 else PRIOR, self._all_kinds.seen
            every = self._all_kinds.chances(1)[0]
            survival.prior = (SIMILAR * own + seen * every) / (SIMILAR + seen)
        return survival


def share_expectations(contenders: Sequence[Contender]) -> None:
    """Tell whoever was not seen yet how right the others were."""
    unseen = [one for one in contenders if one.unseen]
    if not unseen:
        return
    chances = [one.first_chance for one in contenders]
    known = [chance for chance in chances if chance is not None]
    for contender in unseen if known else ():
        contender.expect(sum(known) / len(known))
