"""One target forward with its drafts, and the tokens that it yields."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence
from typing import cast, final

import attrs
import mlx.core as mx

from speculate._mx import log_softmax, to_ints
from speculate.errors import SpeculateError
from speculate.protocols import (
    Commit,
    Draft,
    Forward,
    Plan,
    Round,
    Sampler,
    Verdict,
    Verification,
)


@final
@attrs.define(eq=False)
class Block:
    """The last token and the drafts after it, fed to the target in one forward.

    Attributes:
        plan: The strategy's plan: proposer and requested depth.
        depth: The depth, limited to what can be used.
        draft: The drafted tokens.
        out: Output of the target's forward.
        verification: The outcome of verification, on the device until `read`.
        accepted: Accepted drafts, known after `read`.
        length: Tokens that the block yields, up to a stop token or the end of the budget.
        emitted: How many of them were emitted.
        kept: Whether its accepted tokens were committed, and the rest rolled back.
        index: Number of the round.
        context: Length of the sequence before the block's tokens.
        seconds: Duration of the round.
        overlapped: Seconds that the caller spent while the device may have worked on the block.
    """

    plan: Plan
    depth: int
    draft: Draft = attrs.field(init=False)
    out: Forward = attrs.field(init=False)
    verification: Verification = attrs.field(init=False)
    accepted: int = 0
    length: int = 0
    emitted: int = 0
    kept: bool = False
    index: int = 0
    context: int = 0
    seconds: float = 0.0
    overlapped: float = 0.0

    @property
    def drafted(self) -> int:
        """Number of drafted tokens."""
        return self.draft.tokens.shape[0]

    @property
    def proposer(self) -> str | None:
        """Name of the planned proposer; `None` if none was planned."""
        return None if self.plan.proposer is None else self.plan.proposer.name

    def results(self) -> list[mx.array]:
        """Return the arrays that the round's one synchronisation evaluates."""
        if not self.drafted:
            return [self.verification.tokens]
        return [self.verification.accepted, self.verification.tokens, self.draft.tokens]

    def read(self, sampler: Sampler) -> list[int]:
        """Return the ids that the block yields: the accepted drafts and the bonus token.

        Args:
            sampler: Named in errors.

        Raises:
            SpeculateError: The sampler accepted more drafts than there are, or chose a token
                that is not in the vocabulary.
        """
        tokens, drafted = to_ints(self.verification.tokens), self.drafted
        accepted = cast(int, self.verification.accepted.item()) if drafted else 0
        if not 0 <= accepted <= drafted:
            raise SpeculateError(f"the sampler {sampler} accepted {accepted} of {drafted} drafts")
        bonus, size = tokens[accepted], self.out.logits.shape[-1]
        if not 0 <= bonus < size:
            raise SpeculateError(
                f"the sampler {sampler} chose token {bonus}, which is not in the model's "
                f"vocabulary of {size}"
            )
        if self.verification.logits.shape[0] <= accepted:
            rows = self.verification.logits.shape[0]
            raise SpeculateError(
                f"the sampler {sampler} accepted {accepted} drafts, and returned {rows} rows of "
                "logits"
            )
        self.accepted = accepted
        return [*to_ints(self.draft.tokens)[:accepted], bonus] if drafted else [bonus]

    def commit(self, ids: Sequence[int], bonus: int | None) -> Commit:
        """Build the commit of the block's first tokens for the proposers.

        Args:
            ids: Ids of these tokens: the first token fed and the accepted drafts.
            bonus: The bonus token, if it was emitted.
        """
        drafted, name = self.drafted, self.proposer
        verdict = Verdict(name, drafted, len(ids) - 1) if name and drafted else None
        return Commit.of(self.out, ids, verdict, bonus)

    def tokens(
        self,
        logprobs: BlockLogprobs,
        ids: Sequence[int],
        remaining: int | None,
        stop_tokens: Collection[int],
    ) -> list[Token]:
        """Return the tokens to emit, up to a stop token or the end of the budget.

        Args:
            logprobs: Log-probabilities of the block's tokens.
            ids: Result of `read`.
            remaining: Tokens that may still be emitted; `None` without a limit.
            stop_tokens: Ids that end the sequence. A stop token that also uses up the budget
                counts as a stop.
        """
        tokens: list[Token] = []
        for index, id_ in enumerate(ids):
            reason = "length" if remaining == index + 1 else None
            if id_ in stop_tokens:
                reason = "stop"
            from_draft = index < len(ids) - 1
            name = self.proposer if from_draft else None
            tokens.append(Token(id_, from_draft, name, reason, logprobs.of(index)))
            if reason is not None:
                break
        return tokens

    def round(self, *, truncated: bool) -> Round:
        """Return the outcome of the round, of which no more tokens will be emitted.

        Args:
            truncated: Whether the sequence ended in this block.
        """
        return Round(
            index=self.index,
            proposer=self.proposer if self.drafted else None,
            planned=self.plan.depth,
            drafted=self.drafted,
            accepted=min(self.emitted, self.accepted),
            emitted=self.emitted,
            truncated=truncated,
            seconds=self.seconds,
            context=self.context,
            predicted_speedup=self.plan.predicted_speedup,
            baseline_seconds=self.plan.baseline_seconds,
            planned_proposer=self.proposer,
            overlapped_seconds=self.overlapped,
        )


@final
class LazyLogprobs:
    """Log-probabilities of one token, computed on first read.

    Holds the block's logits or a copy of one row until then, and only the result afterwards.
    Safe to read from any thread while generation continues in another, because the held value
    is replaced in a single assignment.

    Args:
        logits: Logits of the block, `(rows, vocabulary)`.
        row: Row of the token.
    """

    __slots__ = ("__weakref__", "_held")

    def __init__(self, logits: mx.array, row: int) -> None:
        self._held: tuple[mx.array, int] | mx.array = logits, row

    def read(self) -> mx.array:
        """Return `(vocabulary,)` float32 log-probabilities, scheduled but not awaited."""
        held = self._held
        if isinstance(held, tuple):
            logits, row = held
            held = log_softmax(logits[row])
            mx.async_eval(held)  # Until evaluated, the graph keeps the logits alive.
            self._held = held
        return held

    def row(self) -> mx.array | None:
        """Return an unevaluated copy of the logits `(1, vocabulary)`; `None` once read."""
        held = self._held
        return mx.contiguous(held[0][held[1] : held[1] + 1]) if isinstance(held, tuple) else None

    def keep(self, row: mx.array) -> None:
        """Hold `row` in place of the block's logits."""
        if isinstance(self._held, tuple):
            self._held = row, 0


@final
class BlockLogprobs:
    """Log-probabilities of a block's tokens, sharing its logits until `release`.

    Args:
        logits: Logits of the block, `(rows, vocabulary)`.
        shared: Whether the logits have rows of several tokens.
    """

    def __init__(self, logits: mx.array, *, shared: bool) -> None:
        self._logits = logits
        self._shared = shared
        self._given: list[weakref.ref[LazyLogprobs]] = []

    def of(self, row: int) -> LazyLogprobs:
        """Return the log-probabilities of a row's token."""
        logprobs = LazyLogprobs(self._logits, row)
        if self._shared:
            self._given.append(weakref.ref(logprobs))
        return logprobs

    def release(self) -> None:
        """Copy a row for each token still in use, so that the block's logits can be freed."""
        alive = [logprobs for given in self._given if (logprobs := given()) is not None]
        copies = [(logprobs, row) for logprobs in alive if (row := logprobs.row()) is not None]
        self._given = []
        mx.async_eval([row for _, row in copies])
        for logprobs, row in copies:
            logprobs.keep(row)


@final
@attrs.frozen(eq=False)
class Token:
    """One emitted token.

    Attributes:
        id: Token id.
        from_draft: Whether it is an accepted draft. `False` for the target's own tokens,
            including the bonus token after accepted drafts.
        proposer: Name of the proposer that drafted it; `None` for the target's own.
        finish_reason: "stop" or "length" for the last token, otherwise `None`.
    """

    id: int
    from_draft: bool
    proposer: str | None
    finish_reason: str | None
    _logprobs: LazyLogprobs = attrs.field(repr=False)

    @property
    def logprobs(self) -> mx.array:
        """The target's log-probabilities, `(vocabulary,)` float32, computed on first read.

        They include logits processors, but neither filters nor temperature. Reading schedules
        the computation without waiting for it.
        """
        return self._logprobs.read()

    def top_logprobs(self, n: int) -> list[tuple[int, float]]:
        """Return the `n` most likely ids with their log-probabilities, in descending order.

        Synchronises with the device.
        """
        logprobs = self.logprobs
        ids = mx.argsort(-logprobs)[:n]
        return list(zip(to_ints(ids), cast("list[float]", logprobs[ids].tolist()), strict=True))


@final
@attrs.frozen(eq=False)
class Offered:
    """A token on its way to the caller, with the state to restore if it does not arrive.

    Attributes:
        token: The token.
        block: Its block.
        length: Previous length of the sequence.
        in_block: Tokens of the block emitted before.
        emitted: Tokens emitted before, in total.
    """

    token: Token
    block: Block
    length: int
    in_block: int
    emitted: int
