"""Keeps a strategy's proposers at the same position, and isolates those that fail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import final

import mlx.core as mx

from speculate._mx import clamped_ids, unsigned_ids
from speculate.errors import SpeculateError
from speculate.protocols import (
    Commit,
    Draft,
    DraftSampler,
    Plan,
    Proposer,
    SpeculativeModel,
    Strategy,
    SupportsFailover,
)


@final
class ProposerPool:
    """Keeps all proposers of a strategy at the same position in the sequence.

    A proposer that raises ends the run, unless the strategy tolerates failures; then the
    proposer is inactive for the rest of the sequence.

    Args:
        strategy: The strategy with its proposers.
        target: The model to draft for.
    """

    def __init__(self, strategy: Strategy, target: SpeculativeModel) -> None:
        self._strategy = strategy
        self._target = target
        self._active = list(strategy.proposers)
        self._within = 0
        self._returned = 0
        # Built from a host list: `mx.zeros` would be evaluated lazily, in this thread's stream.
        self.no_draft: Draft = Draft(mx.array([], dtype=mx.uint32))

    @property
    def interrupted(self) -> bool:
        """Whether an interrupt hit a proposer in the middle of a call, so its state is unknown."""
        return self._within != self._returned

    def begin(self, position: int, known: int | None, history: Sequence[int]) -> None:
        """Begin or continue a sequence of `position` tokens.

        Args:
            position: Tokens in the caches.
            known: `position`, if the proposers have seen exactly these tokens; proposers
                at this position continue. `None` otherwise.
            history: Ids of earlier turns, for proposers that begin anew.
        """
        self._strategy.begin()
        for proposer in list(self._active):
            proposer.attach(self._target)
            with self.isolating(proposer):
                if known is None or proposer.position() != known:
                    proposer.begin(position, history)

    def is_active(self, proposer: Proposer) -> bool:
        """Whether a proposer has not failed during this sequence."""
        return any(proposer is one for one in self._active)

    def reset(self, position: int, history: Sequence[int]) -> None:
        """Return every proposer to the start of a sequence that was abandoned.

        A proposer that fails here is begun anew with the next sequence.
        """
        for proposer in self._active:
            with suppress(Exception):
                proposer.begin(position, history)

    def commit(self, commit: Commit, position: int | None = None) -> None:
        """Notify every proposer of committed tokens, regardless of which one drafted.

        Args:
            commit: The committed tokens.
            position: Position of the first of them, after a failure: a proposer at another
                position missed a commit and begins anew with the next sequence.
        """
        for proposer in list(self._active):
            if position is not None and proposer.position() != position:
                continue
            # Not `isolating`: in every round, a context manager costs more than most commits.
            self._within += 1
            try:
                proposer.commit(commit)
                self._returned += 1
            except Exception as error:
                self._returned += 1
                self._deactivate(proposer, error)

    def settle(self) -> None:
        """Bring every proposer's caches to the committed sequence.

        Raises:
            Exception: The first failure, after all proposers were settled.
        """
        failures = []
        for proposer in list(self._active):
            try:
                with self.isolating(proposer):
                    proposer.settle()
            except Exception as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    def draft(self, plan: Plan, last_token: int, depth: int, choose: DraftSampler) -> Draft:
        """Have the planned proposer draft, and validate the draft.

        Returns:
            Up to `depth` ids of the target; none at depth 0 or if the proposer is inactive.

        Raises:
            SpeculateError: The plan has no proposer, or the draft is invalid.
        """
        if not depth:
            return self.no_draft
        proposer = plan.proposer
        if proposer is None:
            raise SpeculateError(f"the strategy planned {plan.depth} drafts without a proposer")
        if self.is_active(proposer):
            with self.isolating(proposer):
                # An array of its own, which the proposer may write into.
                last = mx.array([last_token], dtype=mx.uint32)
                draft = proposer.propose(last, depth, choose)
                draft = validated_draft(proposer, draft, depth)
                return in_range(draft, self._target.vocab_size) if draft.tokens.shape[0] else draft
        if not any(proposer is one for one in self._strategy.proposers):
            raise SpeculateError(f"the strategy planned {proposer!r}, which is not one of its own")
        return self.no_draft

    @contextmanager
    def isolating(self, proposer: Proposer) -> Iterator[None]:
        """Deactivate `proposer` if the body raises and the strategy tolerates failures."""
        self._within += 1
        try:
            yield
            self._returned += 1
        except Exception as error:
            self._returned += 1
            self._deactivate(proposer, error)

    def _deactivate(self, proposer: Proposer, error: Exception) -> None:
        """Deactivate a proposer that raised; re-raise if the strategy tolerates no failures."""
        if not isinstance(self._strategy, SupportsFailover):
            raise error
        self._active.remove(proposer)
        with suppress(Exception):
            proposer.begin(0)  # Its state is unknown: make the next sequence begin it anew.
        self._strategy.failed(proposer, error)


def validated_draft(proposer: Proposer, draft: object, depth: int) -> Draft:
    """Validate a proposer's draft and schedule its computation.

    Only checks types and shapes, which the host knows. Values are handled on the device: by
    `in_range` and by the acceptance rules.

    Raises:
        SpeculateError: It is not a draft, or has more than `depth` tokens.
    """
    name = f"proposer '{proposer.name}'"
    if not isinstance(draft, Draft):
        raise SpeculateError(f"{name} returned a {type(draft).__name__}, not a Draft")
    tokens: object = draft.tokens
    if not isinstance(tokens, mx.array):
        kind = type(tokens).__name__
        raise SpeculateError(f"{name} drafted a {kind}: Draft.tokens is an mx.array")
    if tokens.ndim != 1 or not mx.issubdtype(tokens.dtype, mx.integer):
        raise SpeculateError(
            f"{name} drafted {tokens.shape} {tokens.dtype}: Draft.tokens must be (k,) integers"
        )
    if tokens.shape[0] > depth:
        raise SpeculateError(
            f"{name} drafted {tokens.shape[0]} tokens, but at most {depth} were requested"
        )
    _check_logprobs(name, draft)
    # Arrays that cannot be evaluated, such as another thread's, fail here, in the proposer's name.
    mx.async_eval(tokens, *[row for row in draft.logprobs if row is not None])
    return draft


def _check_logprobs(name: str, draft: Draft) -> None:
    logprobs: object = draft.logprobs
    if not isinstance(logprobs, Sequence):
        kind = type(logprobs).__name__
        raise SpeculateError(f"{name} returned a {kind} in Draft.logprobs, which must be a list")
    count = draft.tokens.shape[0]
    if len(logprobs) not in (0, count):
        raise SpeculateError(
            f"{name} returned {len(logprobs)} entries in Draft.logprobs for {count} tokens: it "
            "must be empty or have one entry per token, None for one drafted with certainty"
        )
    for row in logprobs:
        if row is None:
            continue
        if not isinstance(row, mx.array):
            raise SpeculateError(f"{name} returned a {type(row).__name__} in Draft.logprobs")
        if row.ndim != 2 or row.shape[0] != 1 or not row.shape[1] or row.dtype != mx.float32:
            raise SpeculateError(
                f"{name} returned {row.shape} {row.dtype} in Draft.logprobs: entries must be "
                "(1, vocabulary) log-probabilities in float32, as returned by choose"
            )


def in_range(draft: Draft, columns: int) -> Draft:
    """Clamp a draft to a model's vocabulary, and its distributions likewise.

    Ids are clamped as by `clamped_ids`. A distribution's mass on ids from there on moves to the
    last id, so that it remains the token's distribution. A token without a column in its
    distribution was not sampled from it; its log-probabilities become NaN, which no sampler
    accepts.

    Args:
        draft: At least one token, of any integer type.
        columns: Size of the model's vocabulary.
    """
    ids = unsigned_ids(draft.tokens)
    logprobs = [
        row if row is None else _over(row, ids[index], columns)
        for index, row in enumerate(draft.logprobs)
    ]
    return Draft(clamped_ids(ids, columns), logprobs, draft.survival)


def _over(row: mx.array, id_: mx.array, columns: int) -> mx.array:
    """Fit a token's log-probabilities to `(1, columns)` from more or fewer ids."""
    width = row.shape[1]
    if width > columns:
        last = mx.logsumexp(row[:, columns - 1 :], axis=-1, keepdims=True)
        row = mx.concatenate([row[:, : columns - 1], last], axis=-1)
    elif width < columns:
        row = mx.pad(row, [(0, 0), (0, columns - width)], constant_values=-mx.inf)
    return mx.where(id_ < width, row, mx.nan)
