"""Proposers under verification, each with a second way to compute the same drafts.

The second way uses the sequence alone. It runs no rounds and rewinds nothing, so the two agree
only if the proposer stays in step with the sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast, final

import attrs
import mlx.core as mx

from speculate._mx import to_ints
from speculate.errors import HeadNotFoundError
from speculate.proposers.draft_model import DraftModel, clamp_ids
from speculate.proposers.mtp_chain import MTPChain
from speculate.protocols import Choose, Commit, Draft, Proposer, SpeculativeModel
from speculate.verify.oracle import token_row

Redraft = Callable[[int, int, Choose], list[int]]
"""`redraft(position, depth, choose)` drafts after the first `position` tokens of a sequence."""

Offline = Callable[[SpeculativeModel, Sequence[int]], Redraft]
"""`offline(target, ids)` prepares a `Redraft` for one sequence."""


@final
@attrs.frozen
class Drafter:
    """A proposer under verification.

    Attributes:
        name: Its name in reports.
        make: Makes a new proposer.
        offline: Computes the same drafts from the sequence alone.
    """

    name: str
    make: Callable[[], Proposer]
    offline: Offline


@final
class RecordingProposer:
    """A proposer that records the limit and the ids of every draft of another one, unless empty."""

    def __init__(self, proposer: Proposer) -> None:
        self.name: str = proposer.name
        self.drafts: list[tuple[int, mx.array]] = []
        self._proposer = proposer

    def attach(self, target: SpeculativeModel, /) -> None:
        self._proposer.attach(target)

    def begin(self, position: int, /) -> None:
        self._proposer.begin(position)

    def position(self) -> int:
        return self._proposer.position()

    def commit(self, commit: Commit, /) -> None:
        self._proposer.commit(commit)

    def propose(self, newest: mx.array, limit: int, choose: Choose, /) -> Draft:
        draft = self._proposer.propose(newest, limit, choose)
        if draft.tokens.shape[0]:
            self.drafts.append((limit, draft.tokens))
        return draft

    def settle(self) -> None:
        self._proposer.settle()


def head_drafter() -> Drafter:
    """The model's own multi-token-prediction head."""
    return Drafter("mtp", MTPChain, _head_offline)


def model_drafter(draft: SpeculativeModel) -> Drafter:
    """A draft model."""

    def offline(target: SpeculativeModel, ids: Sequence[int]) -> Redraft:
        shared = min(draft.vocab_size, target.vocab_size)

        def redraft(position: int, depth: int, choose: Choose) -> list[int]:
            if ids[position - 1] >= draft.vocab_size:
                return []
            caches = draft.make_cache()
            block, drafts = token_row(clamp_ids(draft, ids[:position])), list[int]()
            while len(drafts) < depth:
                logits = draft.forward(block, caches).logits[:, -1, :shared]
                drafts.append(_chosen(choose, logits, len(drafts)))
                block = token_row(drafts[-1:])
            return drafts

        return redraft

    return Drafter("draft", lambda: DraftModel(draft), offline)


def proposer_drafter(make: Callable[[], Proposer]) -> Drafter:
    """Any proposer that `make` returns.

    Each draft is recomputed by a new one that gets the sequence in one commit.
    """

    def offline(target: SpeculativeModel, ids: Sequence[int]) -> Redraft:
        hidden = _hidden(target, ids)

        def redraft(position: int, depth: int, choose: Choose) -> list[int]:
            proposer, committed = make(), list(ids[: position - 1])
            proposer.attach(target)
            proposer.begin(0)
            if committed:
                tokens = mx.array(committed, dtype=mx.uint32)
                proposer.commit(Commit(tokens, hidden[:, : position - 1], None, committed))
            last = mx.array([ids[position - 1]], dtype=mx.uint32)
            return to_ints(proposer.propose(last, depth, choose).tokens)

        return redraft

    return Drafter(make().name, make, offline)


def _head_offline(target: SpeculativeModel, ids: Sequence[int]) -> Redraft:
    """Run the head over all true rows in one batch, then chain it from the last one."""
    head = target.head
    if head is None:
        raise HeadNotFoundError("the model has no multi-token-prediction head to draft with")
    hidden = _hidden(target, ids)

    def redraft(position: int, depth: int, choose: Choose) -> list[int]:
        # Row i pairs the hidden state of token i with token i + 1.
        state, tokens = hidden[:, : position - 1], token_row(ids[1:position])
        caches, drafts = head.make_cache(), list[int]()
        while len(drafts) < depth and state.shape[1]:
            out = head.step(state, tokens, caches)
            drafts.append(_chosen(choose, out.logits[:, -1], len(drafts)))
            state, tokens = out.hidden[:, -1:], token_row(drafts[-1:])
        return drafts

    return redraft


def _hidden(target: SpeculativeModel, ids: Sequence[int]) -> mx.array:
    """Hidden states of a cold prefill, `(1, T, width)`."""
    hidden = target.forward(token_row(ids), target.make_cache()).hidden
    mx.eval(hidden)
    return hidden


def _chosen(choose: Choose, logits: mx.array, index: int) -> int:
    return cast(int, choose(logits, index).token.item())
