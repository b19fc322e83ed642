"""One forward of the target, and what came of it."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence
from typing import cast, final

import attrs
import mlx.core as mx

from speculate._mx import log_softmax, to_ints
from speculate.protocols import Commit, Decision, Draft, Forward, Plan, Verdict


@final
@attrs.frozen(eq=False)
class Block:
    """The newest token and the drafts behind it, fed to the target together.

    Attributes:
        plan: Who drafted, and how much was asked for.
        draft: The drafts.
        out: The target's forward.
        decision: What stands, on the device until read.
        confidence: Probability that the proposer gave each draft, one array a draft; empty
            where nobody asked.
    """

    plan: Plan
    draft: Draft
    out: Forward
    decision: Decision
    confidence: Sequence[mx.array] = ()

    @property
    def drafted(self) -> int:
        """Tokens that were drafted."""
        return self.draft.tokens.shape[0]

    @property
    def proposer(self) -> str | None:
        """Name of whoever drafted."""
        return None if self.plan.proposer is None else self.plan.proposer.name

    def results(self) -> list[mx.array]:
        """What one synchronisation has to bring to the host."""
        if not self.drafted:
            return [self.decision.tokens]
        results = [self.decision.accepted, self.decision.tokens, self.draft.tokens]
        return [*results, *self.confidence]

    def read(self) -> list[int]:
        """Tokens that the block gives: accepted drafts, then one of the target's own."""
        tokens = to_ints(self.decision.tokens)
        if not self.drafted:
            return tokens
        accepted = cast(int, self.decision.accepted.item())
        return [*to_ints(self.draft.tokens)[:accepted], tokens[accepted]]

    def commit(self, ids: Sequence[int], newest: int | None) -> Commit:
        """What the proposers are told when the block's first tokens became text.

        Args:
            ids: These tokens, on the host: the first one fed, and the drafts that stand.
            newest: The token behind them, where it was emitted.
        """
        drafted, name = self.drafted, self.proposer
        verdict = Verdict(name, drafted, len(ids) - 1) if name and drafted else None
        # Written anew: to cut them out of what was fed would be work for the device.
        tokens = mx.array(list(ids), dtype=mx.uint32)
        return Commit(tokens, self.out.hidden, verdict, ids, newest)


@final
class Score:
    """Log-probabilities of one token, computed when they are first read.

    Until then it holds the logits of the token's block, or a copy of its own row, and from then
    on what was computed and nothing else. It may be read in any thread, also while the text goes
    on in another: what it holds is replaced in one step, by something that is computed or under
    way.

    Args:
        logits: `(rows, vocabulary)`.
        row: Which of them.
    """

    __slots__ = ("__weakref__", "_held")

    def __init__(self, logits: mx.array, row: int) -> None:
        self._held: tuple[mx.array, int] | mx.array = logits, row

    def read(self) -> mx.array:
        """`(vocabulary,)` float32, under way."""
        held = self._held
        if isinstance(held, tuple):
            logits, row = held
            held = log_softmax(logits[row])
            # Until it is computed, it keeps the logits.
            mx.async_eval(held)
            self._held = held
        return held

    def row(self) -> mx.array | None:
        """A copy of the logits `(1, vocabulary)`, not computed yet; `None` where they were read."""
        held = self._held
        return mx.contiguous(held[0][held[1] : held[1] + 1]) if isinstance(held, tuple) else None

    def keep(self, row: mx.array) -> None:
        """Hold a copy of `row` in place of a block's logits."""
        if isinstance(self._held, tuple):
            self._held = row, 0


@final
class Scores:
    """The scores of a block's tokens, for as long as the block's logits are there anyway.

    Args:
        logits: `(rows, vocabulary)`.
        shared: They may be more than what one token needs.
    """

    def __init__(self, logits: mx.array, *, shared: bool) -> None:
        self._logits = logits
        self._shared = shared
        self._given: list[weakref.ref[Score]] = []

    def of(self, row: int) -> Score:
        """The score of the token that a row is for."""
        score = Score(self._logits, row)
        if self._shared:
            self._given.append(weakref.ref(score))
        return score

    def release(self) -> None:
        """Give each token that somebody still has a row of its own: the block's logits may go."""
        scores = [score for given in self._given if (score := given()) is not None]
        copies = [(score, row) for score in scores if (row := score.row()) is not None]
        self._given = []
        mx.async_eval([row for _, row in copies])
        for score, row in copies:
            score.keep(row)


@final
@attrs.frozen(eq=False)
class Token:
    """One emitted token.

    Attributes:
        id: Its id in the model's vocabulary.
        from_draft: It is a draft that the target accepted. The target's own tokens, the
            one after an accepted draft included, say `False`.
        proposer: Name of whoever drafted it; `None` for the target's own.
        finish_reason: `None`, or why the text ends here: "stop" or "length".
    """

    id: int
    from_draft: bool
    proposer: str | None
    finish_reason: str | None
    _score: Score = attrs.field(repr=False)

    @property
    def logprobs(self) -> mx.array:
        """The target's log-probabilities, `(vocabulary,)` float32. Computed when read.

        After logits processors, and before the filters and the temperature. Reading them waits
        for nothing: the device begins to compute them.
        """
        return self._score.read()

    def top_logprobs(self, n: int) -> list[tuple[int, float]]:
        """The `n` most likely ids and their log-probabilities, the most likely first.

        Computed when called; synchronises.
        """
        logprobs = self.logprobs
        ids = mx.argsort(-logprobs)[:n]
        return list(zip(to_ints(ids), cast("list[float]", logprobs[ids].tolist()), strict=True))


def tokens_of(
    block: Block,
    scores: Scores,
    ids: Sequence[int],
    remaining: int | None,
    stop_tokens: Collection[int],
) -> list[Token]:
    """What a block gives, up to a stop token or the end of the budget.

    Args:
        block: The block.
        scores: Of its tokens.
        ids: As read from it: accepted drafts, then the target's own token.
        remaining: Tokens that may still be emitted; `None` without a limit.
        stop_tokens: Ids that end the text. One that falls on the last token of the budget
            counts as a stop.
    """
    tokens: list[Token] = []
    for index, id_ in enumerate(ids):
        reason = "length" if remaining == index + 1 else None
        if id_ in stop_tokens:
            reason = "stop"
        from_draft = index < len(ids) - 1
        name = block.proposer if from_draft else None
        tokens.append(Token(id_, from_draft, name, reason, scores.of(index)))
        if reason is not None:
            break
    return tokens
