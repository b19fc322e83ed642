"""Counters of one call, by the field's definitions."""

from __future__ import annotations

from typing import final

import attrs

from speculate.protocols import Round


@final
@attrs.define
class DraftStats:
    """What became of drafts.

    Attributes:
        drafts: Rounds with at least one drafted token.
        draft_tokens: Tokens that were drafted.
        accepted_tokens: Those of them that were emitted.
        drafted_per_position: How often a draft at each position was made.
        accepted_per_position: How often the draft at each position was emitted.
    """

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    drafted_per_position: list[int] = attrs.Factory(list)
    accepted_per_position: list[int] = attrs.Factory(list)

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens that a round with a draft gives: 1 + accepted / drafts."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts else 1.0

    def add(self, drafted: int, accepted: int) -> None:
        """Count one draft."""
        self.drafts += 1
        self.draft_tokens += drafted
        self.accepted_tokens += accepted
        missing = drafted - len(self.drafted_per_position)
        self.drafted_per_position += [0] * missing
        self.accepted_per_position += [0] * missing
        for position in range(drafted):
            self.drafted_per_position[position] += 1
            self.accepted_per_position[position] += position < accepted


@final
@attrs.define
class Stats:
    """Counters of one call of `generate`.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        emitted_tokens: Tokens that came out so far.
        rounds: Target passes that gave tokens, counted when all of these were emitted.
        seed: With which the text can be had again; `None` where nothing is drawn.
        total: Drafts of all proposers.
        by_proposer: Drafts of each proposer, by its name.
    """

    prompt_tokens: int = 0
    emitted_tokens: int = 0
    rounds: int = 0
    seed: int | None = None
    total: DraftStats = attrs.Factory(DraftStats)
    by_proposer: dict[str, DraftStats] = attrs.Factory(dict)

    @property
    def drafts(self) -> int:
        """Rounds with at least one drafted token."""
        return self.total.drafts

    @property
    def draft_tokens(self) -> int:
        """Tokens that were drafted."""
        return self.total.draft_tokens

    @property
    def accepted_tokens(self) -> int:
        """Drafted tokens that were emitted."""
        return self.total.accepted_tokens

    @property
    def accepted_per_position(self) -> list[int]:
        """How often the draft at each position was emitted."""
        return self.total.accepted_per_position

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens that a round with a draft gives: 1 + accepted / drafts."""
        return self.total.mean_acceptance_length

    def count(self, round: Round) -> None:
        """Count a round."""
        self.rounds += 1
        if round.proposer is not None:
            self.total.add(round.drafted, round.accepted)
            own = self.by_proposer.setdefault(round.proposer, DraftStats())
            own.add(round.drafted, round.accepted)
