"""Counters of one generation."""

from __future__ import annotations

from typing import final

import attrs
from typing_extensions import override

from speculate.protocols import Round


@final
@attrs.frozen
class DraftStats:
    """Acceptance counters of one proposer, or of all.

    Attributes:
        drafts: Rounds with at least one drafted token.
        draft_tokens: Drafted tokens.
        accepted_tokens: Drafted tokens that were accepted and emitted.
        drafted_per_position: Drafted tokens at each draft position.
        accepted_per_position: Accepted and emitted tokens at each draft position.
        seconds: Total time of the rounds with these drafts.
    """

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    drafted_per_position: list[int] = attrs.Factory(list)
    accepted_per_position: list[int] = attrs.Factory(list)
    seconds: float = 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per round with a draft: 1 + accepted / drafts; 1.0 without drafts."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts else 1.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted fraction of the drafted tokens; 0.0 without drafts."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else 0.0

    def plus(self, drafted: int, accepted: int, seconds: float = 0.0) -> DraftStats:
        """Return these counters with one more draft and the seconds of its round."""
        missing = [0] * (drafted - len(self.drafted_per_position))
        made = self.drafted_per_position + missing
        kept = self.accepted_per_position + missing
        for position in range(drafted):
            made[position] += 1
            kept[position] += position < accepted
        return DraftStats(
            self.drafts + 1,
            self.draft_tokens + drafted,
            self.accepted_tokens + accepted,
            made,
            kept,
            self.seconds + seconds,
        )


@final
@attrs.frozen
class WeightedMean:
    """An incrementally computed weighted mean.

    Attributes:
        total: Sum of weight times value.
        weight: Sum of weights.
    """

    total: float = 0.0
    weight: float = 0.0

    def plus(self, value: float | None, weight: float) -> WeightedMean:
        """Return the mean with one more value; `None` is ignored."""
        if value is None:
            return self
        return WeightedMean(self.total + value * weight, self.weight + weight)

    @property
    def value(self) -> float | None:
        """The weighted mean; `None` without weights."""
        return self.total / self.weight if self.weight else None


@final
@attrs.define(slots=False, repr=False)
class Stats:
    """Counters of one call of `generate`.

    Attributes:
        prompt_tokens: Length of the prompt, in tokens.
        emitted_tokens: Tokens emitted so far.
        rounds: Rounds whose tokens have all been emitted.
        round_tokens: Tokens of these rounds. During a round `emitted_tokens` is larger.
        seconds: Total time of these rounds, in seconds, excluding prefill, cost measurements
            for the strategy, and the caller's time between tokens.
        seed: Seed that reproduces the sequence; `None` if nothing is sampled.
        total: Counters over all proposers.
        by_proposer: Counters per proposer name.
    """

    prompt_tokens: int = 0
    emitted_tokens: int = 0
    rounds: int = 0
    round_tokens: int = 0
    seconds: float = 0.0
    seed: int | None = None
    total: DraftStats = attrs.Factory(DraftStats)
    by_proposer: dict[str, DraftStats] = attrs.Factory(dict)
    _predicted: WeightedMean = attrs.field(factory=WeightedMean, init=False, repr=False)
    _baseline: WeightedMean = attrs.field(factory=WeightedMean, init=False, repr=False)

    @property
    def drafts(self) -> int:
        """Rounds with at least one drafted token."""
        return self.total.drafts

    @property
    def draft_tokens(self) -> int:
        """Drafted tokens."""
        return self.total.draft_tokens

    @property
    def accepted_tokens(self) -> int:
        """Drafted tokens that were accepted and emitted."""
        return self.total.accepted_tokens

    @property
    def accepted_per_position(self) -> list[int]:
        """Accepted and emitted tokens at each draft position."""
        return self.total.accepted_per_position

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per round with a draft: 1 + accepted / drafts; 1.0 without drafts."""
        return self.total.mean_acceptance_length

    @property
    def acceptance_rate(self) -> float:
        """Accepted fraction of the drafted tokens; 0.0 without drafts."""
        return self.total.acceptance_rate

    @property
    def plain_seconds(self) -> float | None:
        """Baseline: seconds per step of plain decoding.

        The strategy's estimate, averaged over tokens; if the strategy reports none, the mean time
        of the rounds without drafts; `None` if there was neither.
        """
        plain = WeightedMean(self.seconds - self.total.seconds, self.rounds - self.drafts)
        return self._baseline.value or plain.value or None

    @property
    def predicted_speedup(self) -> float | None:
        """Speedup over plain decoding that the strategy predicted, averaged over time.

        `sum(predicted * seconds) / sum(seconds)` over the rounds with a prediction; `None`
        without predictions. The actual speedup is a time average as well, so the two compare.
        """
        return self._predicted.value

    @property
    def actual_speedup(self) -> float | None:
        """Speedup over plain decoding: `round_tokens * plain_seconds / seconds`.

        `None` if the baseline is unknown.
        """
        plain = self.plain_seconds
        return self.round_tokens * plain / self.seconds if plain and self.seconds else None

    def count(self, round: Round) -> None:
        """Count a round in one update, so that an interrupt leaves it counted or not."""
        after: dict[str, object] = {
            "rounds": self.rounds + 1,
            "round_tokens": self.round_tokens + round.emitted,
            "seconds": self.seconds + round.seconds,
            "_predicted": self._predicted.plus(round.predicted_speedup, round.seconds),
            "_baseline": self._baseline.plus(round.baseline_seconds, round.emitted),
        }
        if round.proposer is not None:
            own = self.by_proposer.get(round.proposer, DraftStats())
            counts = round.drafted, round.accepted, round.seconds
            after["total"] = self.total.plus(*counts)
            after["by_proposer"] = {**self.by_proposer, round.proposer: own.plus(*counts)}
        vars(self).update(after)

    @override
    def __repr__(self) -> str:
        shown = {
            "prompt_tokens": self.prompt_tokens,
            "emitted_tokens": self.emitted_tokens,
            "rounds": self.rounds,
            "draft_tokens": self.draft_tokens,
            "accepted_tokens": self.accepted_tokens,
            "acceptance_rate": f"{self.acceptance_rate:.2f}",
            "mean_acceptance_length": f"{self.mean_acceptance_length:.2f}",
            "seconds": f"{self.seconds:.3g}",
            "seed": self.seed,
            "proposers": list(self.by_proposer),
        }
        return f"Stats({', '.join(f'{name}={value}' for name, value in shown.items())})"
