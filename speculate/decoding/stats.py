"""Counters of one call, by the field's definitions."""

from __future__ import annotations

from typing import final

import attrs

from speculate.protocols import Round


@final
@attrs.frozen
class DraftStats:
    """What became of drafts.

    Attributes:
        drafts: Rounds with at least one drafted token.
        draft_tokens: Tokens that were drafted.
        accepted_tokens: Those of them that were emitted.
        drafted_per_position: How often a draft at each position was made.
        accepted_per_position: How often the draft at each position was emitted.
        seconds: Time of the rounds with these drafts.
    """

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    drafted_per_position: list[int] = attrs.Factory(list)
    accepted_per_position: list[int] = attrs.Factory(list)
    seconds: float = 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens that a round with a draft gives: 1 + accepted / drafts; 1.0 if there was none."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts else 1.0

    @property
    def acceptance_rate(self) -> float:
        """Part of the drafted tokens that were accepted; 0.0 if nothing was drafted."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else 0.0

    def plus(self, drafted: int, accepted: int, seconds: float = 0.0) -> DraftStats:
        """These counters, one draft and the time of its round later."""
        missing = [0] * (drafted - len(self.drafted_per_position))
        made, stood = self.drafted_per_position + missing, self.accepted_per_position + missing
        for position in range(drafted):
            made[position] += 1
            stood[position] += position < accepted
        return DraftStats(
            self.drafts + 1,
            self.draft_tokens + drafted,
            self.accepted_tokens + accepted,
            made,
            stood,
            self.seconds + seconds,
        )


@final
@attrs.frozen
class Mean:
    """A weighted mean in the making.

    Attributes:
        total: Sum of weight times value.
        weight: Sum of weights.
    """

    total: float = 0.0
    weight: float = 0.0

    def plus(self, value: float | None, weight: float) -> Mean:
        """The mean with a value more; `None` is left out."""
        if value is None:
            return self
        return Mean(self.total + value * weight, self.weight + weight)

    @property
    def value(self) -> float | None:
        """The weighted mean; `None` without weights."""
        return self.total / self.weight if self.weight else None


@final
@attrs.define(slots=False)
class Stats:
    """Counters of one call of `generate`.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        emitted_tokens: Tokens that came out so far.
        rounds: Target passes that gave tokens, counted when all of these were emitted.
        round_tokens: Tokens that these gave. Within a round `emitted_tokens` is ahead of it.
        seconds: Time of these rounds, in seconds: without the prompt, without what was
            measured for the strategy, and without the caller's own time between tokens.
        seed: With which the text can be had again; `None` where nothing is drawn.
        total: Drafts of all proposers.
        by_proposer: Drafts of each proposer, by its name.
    """

    prompt_tokens: int = 0
    emitted_tokens: int = 0
    rounds: int = 0
    round_tokens: int = 0
    seconds: float = 0.0
    seed: int | None = None
    total: DraftStats = attrs.Factory(DraftStats)
    by_proposer: dict[str, DraftStats] = attrs.Factory(dict)
    _predicted: Mean = attrs.field(factory=Mean, init=False, repr=False)
    _told: Mean = attrs.field(factory=Mean, init=False, repr=False)

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
        """Tokens that a round with a draft gives: 1 + accepted / drafts; 1.0 if there was none."""
        return self.total.mean_acceptance_length

    @property
    def acceptance_rate(self) -> float:
        """Part of the drafted tokens that were accepted; 0.0 if nothing was drafted."""
        return self.total.acceptance_rate

    @property
    def plain_seconds(self) -> float | None:
        """Time of a step of plain decoding, in seconds.

        What the strategy told, averaged over the tokens; from one that tells nothing, the mean
        of the rounds in which nothing was drafted; `None` where there was neither.
        """
        plain = Mean(self.seconds - self.total.seconds, self.rounds - self.drafts)
        return self._told.value or plain.value or None

    @property
    def predicted_speedup(self) -> float | None:
        """Speedup over plain decoding that the strategy expected, averaged over time.

        `sum(predicted * seconds) / sum(seconds)`, over the rounds with a prediction; `None`
        where there was none. By time, because so the actual speedup is an average as well.
        """
        return self._predicted.value

    @property
    def actual_speedup(self) -> float | None:
        """Speedup over plain decoding: `round_tokens * plain_seconds / seconds`.

        `None` where the time of a plain step is not known.
        """
        plain = self.plain_seconds
        return self.round_tokens * plain / self.seconds if plain and self.seconds else None

    def count(self, round: Round) -> None:
        """Count a round: wholly, or not at all where an interrupt comes in between."""
        after: dict[str, object] = {
            "rounds": self.rounds + 1,
            "round_tokens": self.round_tokens + round.emitted,
            "seconds": self.seconds + round.seconds,
            "_predicted": self._predicted.plus(round.predicted, round.seconds),
            "_told": self._told.plus(round.plain_seconds, round.emitted),
        }
        if round.proposer is not None:
            own = self.by_proposer.get(round.proposer, DraftStats())
            counts = round.drafted, round.accepted, round.seconds
            after["total"] = self.total.plus(*counts)
            after["by_proposer"] = {**self.by_proposer, round.proposer: own.plus(*counts)}
        vars(self).update(after)
