"""Counters of one call, by the field's definitions."""

from __future__ import annotations

from typing import final

import attrs

from speculate.protocols import Round


@final
@attrs.define
class ProposerStats:
    """What became of one proposer's drafts.

    Attributes:
        drafts: Rounds in which it drafted at least one token.
        draft_tokens: Tokens that it drafted.
        accepted_tokens: Those of them that were emitted.
        accepted_per_position: How often the draft at each position was emitted.
        drafted_per_position: How often a draft at each position was made.
    """

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_per_position: list[int] = attrs.Factory(list)
    drafted_per_position: list[int] = attrs.Factory(list)

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
class Stats(ProposerStats):
    """Counters of one call of `generate`, over all proposers.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        emitted_tokens: Tokens that came out.
        rounds: Target passes that gave tokens, with a draft or without.
        by_proposer: The same counters for each proposer that drafted.
    """

    prompt_tokens: int = 0
    emitted_tokens: int = 0
    rounds: int = 0
    by_proposer: dict[str, ProposerStats] = attrs.Factory(dict)

    def count(self, round: Round) -> None:
        """Count a round."""
        self.rounds += 1
        if round.proposer is not None and round.drafted:
            self.add(round.drafted, round.accepted)
            self.by_proposer.setdefault(round.proposer, ProposerStats()).add(
                round.drafted, round.accepted
            )
