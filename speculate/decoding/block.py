"""One forward of the target, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, final

import attrs
import mlx.core as mx

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


def to_ints(tokens: mx.array) -> list[int]:
    """A row of ids, `(n,)`, on the host. Synchronises where they were not read before."""
    return cast("list[int]", tokens.tolist())
