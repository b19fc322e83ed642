"""The model's own multi-token-prediction head, chained to any depth."""

from __future__ import annotations

from typing import final

import mlx.core as mx

from speculate._mx import arrays_of
from speculate.backends.group import CacheGroup, group_of
from speculate.errors import HeadNotFoundError, SpeculateError
from speculate.proposers._chain import Waiting
from speculate.protocols import (
    Choice,
    Choose,
    Commit,
    Draft,
    Fingerprinted,
    Forward,
    MTPHead,
    Rollbackable,
    SpeculativeModel,
)


@final
class MTPChain:
    """Drafts with the head that came with the target.

    Row `i` of the head's cache pairs the target's hidden state of token `i` with token
    `i + 1`, for every committed token. Chain steps beyond the first feed the head its own
    output; their rows are taken back, and come again with true hidden states in one batch
    with the first step of the next chain.
    """

    def __init__(self) -> None:
        self._head: MTPHead | None = None
        self._cache: list[Rollbackable] = []
        self._group = CacheGroup([])
        self._position = 0
        self._told: list[Commit] = []  # hidden states that wait for the token behind them
        self._tokens = Waiting()
        self._catch_up = 0

    @property
    def name(self) -> str:
        return "mtp"

    @property
    def fingerprint(self) -> str:
        """The head's; see `Fingerprinted`."""
        head: object = self._head
        return head.fingerprint if isinstance(head, Fingerprinted) else ""

    def attach(self, target: SpeculativeModel, /) -> None:
        if target.head is None:
            raise HeadNotFoundError(
                "MTPChain needs a model with a multi-token-prediction head, and none is attached. "
                "Load a checkpoint that has one, or pass head=load_mtp_head(path, model) to adapt."
            )
        if target.head is not self._head:
            self._head = target.head
            self.begin(0)

    def begin(self, position: int, /) -> None:
        self._position = position
        self._cache = self._the_head().make_cache(position)
        group = group_of(self._cache)
        if group is None:
            raise SpeculateError("the head's make_cache returned caches without a group")
        self._group = group
        self._group.start()
        self._told, self._tokens, self._catch_up = [], Waiting(), 0

    def position(self) -> int:
        return self._position

    def behind(self) -> int:
        """See `CatchesUp`."""
        return self._tokens.behind()

    def commit(self, commit: Commit, /) -> None:
        self._end_draft()
        # A waiting hidden state is paired with the next token. Where none waits, the first
        # token has its row already, or is the first of the text, which has none before it.
        self._tokens.add(commit.ids if self._told else commit.ids[1:])
        self._told.append(commit)
        self._position += commit.tokens.shape[0]
        if self._tokens.is_due(commit.tokens.shape[0]):
            self._flush()
        elif commit.newest is None:
            # Of a prompt, which nobody else has computed, and this thread may not come again.
            mx.async_eval(commit.hidden)

    def propose(self, newest: mx.array, limit: int, choose: Choose, /) -> Draft:
        if not self._told:
            return Draft(mx.zeros((0,), dtype=newest.dtype))
        if self.behind():
            self._flush()
        state = self._states()
        tokens = self._tokens.in_front_of(newest)
        chain: list[Choice] = []
        while len(chain) < limit:
            out = self._step(state, tokens)
            self._catch_up = self._catch_up or tokens.shape[0]
            chain.append(choose(out.logits[:, -1], len(chain)))
            state, tokens = out.hidden[:, -1:], chain[-1].token
            # The device begins while the next step is written down.
            mx.async_eval(tokens, arrays_of(self._cache) if len(chain) == limit else [])
        drafts = mx.concatenate([choice.token for choice in chain])
        return Draft(drafts, [choice.law for choice in chain])

    def settle(self) -> None:
        self._group.rewind()
        self._catch_up = 0
        mx.eval(arrays_of(self._cache), [commit.hidden for commit in self._told])

    def _end_draft(self) -> None:
        """Keep the rows with true hidden states, and take back those of the chain."""
        if self._catch_up:
            self._group.apply_keep(self._catch_up, self._group.plan_keep(self._catch_up))
            self._told, self._tokens, self._catch_up = [], Waiting(), 0

    def _flush(self) -> None:
        """Take in every row whose token is known; the newest hidden state still waits."""
        hidden = self._states()
        self._step(hidden[:, :-1], self._tokens.tokens())
        self._group.checkpoint()
        newest = mx.array([self._told[-1].ids[-1]], dtype=mx.uint32)
        state = mx.contiguous(hidden[:, -1:])
        self._told, self._tokens = [Commit(newest, state)], Waiting()
        mx.async_eval(arrays_of(self._cache), state)

    def _states(self) -> mx.array:
        """Those that wait, `(1, n, width)`."""
        if len(self._told) == 1:
            return self._told[0].hidden
        return mx.concatenate([commit.hidden for commit in self._told], axis=1)

    def _step(self, hidden: mx.array, tokens: mx.array) -> Forward:
        with self._group.block(tokens[None]) as fed:
            return self._the_head().step(hidden, fed, self._cache)

    def _the_head(self) -> MTPHead:
        if self._head is None:
            raise SpeculateError("MTPChain drafts for no model yet: give it to a Decoder")
        return self._head
