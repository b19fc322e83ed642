"""The model's own multi-token-prediction head, chained to any depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import mlx.core as mx

from speculate._mx import arrays_of
from speculate.backends.group import CacheGroup, required_group
from speculate.errors import HeadNotFoundError, SpeculateError
from speculate.proposers._chain import Backlog, draft_chain, fingerprint_of
from speculate.protocols import (
    Commit,
    Draft,
    DraftSampler,
    Forward,
    MTPHead,
    Rollbackable,
    SpeculativeModel,
)


@final
class MTPChain:
    """Drafts with the multi-token-prediction head of the target.

    Row `i` of the head's cache pairs the target's hidden state of token `i` with token
    `i + 1`, for every committed token. Chain steps beyond the first feed the head its own
    output; their rows are rolled back, and are fed again with the target's hidden states,
    together with the first step of the next chain.
    """

    def __init__(self) -> None:
        self._head: MTPHead | None = None
        self._cache: list[Rollbackable] = []
        self._group = CacheGroup([])
        self._position = 0
        self._commits: list[Commit] = []  # their hidden states are not fed yet
        self._backlog = Backlog()
        self._true_rows = 0  # rows of the draft in flight with the target's hidden states

    def __repr__(self) -> str:
        head = "no head" if self._head is None else type(self._head).__name__
        return f"<MTPChain: {head}, position {self._position}>"

    @property
    def name(self) -> str:
        return "mtp"

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self._head)

    def attach(self, target: SpeculativeModel, /) -> None:
        if target.head is None:
            raise HeadNotFoundError(
                "MTPChain needs a model with a multi-token-prediction head, and none is attached. "
                "Load a checkpoint that has one, or pass head=load_mtp_head(path, model) to adapt."
            )
        if target.head is not self._head:
            self._head = target.head
            self.begin(0)

    def begin(self, position: int, history: Sequence[int] = (), /) -> None:
        self._position = position
        self._group.stop()  # An open window keeps the caches alive.
        self._cache = self._attached_head().make_cache(position)
        self._group = required_group(self._cache, "the head's")
        self._group.start()
        self._commits, self._backlog, self._true_rows = [], Backlog(), 0

    def position(self) -> int:
        return self._position

    def backlog(self) -> int:
        return self._backlog.own_batch()

    def commit(self, commit: Commit, /) -> None:
        if self._true_rows:
            # Keeps the rows with the target's hidden states, and rolls back those of the chain.
            self._group.keep(self._true_rows)
            self._commits, self._backlog, self._true_rows = [], Backlog(), 0
        # A hidden state that is not fed yet is paired with the next token. Without one, the
        # first token has its row already, or starts the sequence and has no state before it.
        self._backlog += commit.ids if self._commits else commit.ids[1:]
        self._commits.append(commit)
        self._position += commit.tokens.shape[0]
        if self._backlog.should_flush(commit.tokens.shape[0]):
            self._flush()
        elif commit.bonus is None:
            # The hidden states of a prompt are not computed yet, and the next step may run in
            # another thread.
            mx.async_eval(commit.hidden)

    def propose(self, last_token: mx.array, limit: int, choose: DraftSampler, /) -> Draft:
        if not self._commits:
            return Draft(mx.zeros((0,), dtype=last_token.dtype))
        if self.backlog():
            self._flush()
        hidden = self._hidden()

        def step(tokens: mx.array, index: int) -> mx.array:
            nonlocal hidden
            out = self._step(hidden, tokens)
            self._true_rows = self._true_rows or tokens.shape[0]
            hidden = out.hidden[:, -1:]
            return out.logits[:, -1]

        return draft_chain(self._backlog.before(last_token), limit, choose, step, self._cache)

    def settle(self) -> None:
        self._group.rewind()
        self._true_rows = 0
        mx.eval(arrays_of(self._cache), [commit.hidden for commit in self._commits])

    def _flush(self) -> None:
        """Feed every row whose token is known. The last hidden state has no token yet."""
        hidden = self._hidden()
        self._step(hidden[:, :-1], self._backlog.tokens())
        self._group.checkpoint()
        last = mx.array([self._commits[-1].ids[-1]], dtype=mx.uint32)
        state = mx.contiguous(hidden[:, -1:])
        self._commits, self._backlog = [Commit(last, state)], Backlog()
        mx.async_eval(arrays_of(self._cache), state)

    def _hidden(self) -> mx.array:
        """Hidden states that are not fed yet, `(1, n, width)`."""
        if len(self._commits) == 1:
            return self._commits[0].hidden
        return mx.concatenate([commit.hidden for commit in self._commits], axis=1)

    def _step(self, hidden: mx.array, tokens: mx.array) -> Forward:
        with self._group.block(tokens[None]) as fed:
            return self._attached_head().step(hidden, fed, self._cache)

    def _attached_head(self) -> MTPHead:
        if self._head is None:
            raise SpeculateError("MTPChain is not attached to a model: pass it to a Decoder")
        return self._head
