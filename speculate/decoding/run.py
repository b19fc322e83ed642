"""One text: rounds of plan, propose, forward, accept, keep, observe, emit."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, final

import mlx.core as mx

from speculate.backends.group import CacheGroup, group_of
from speculate.decoding.block import Block
from speculate.decoding.loan import Loan
from speculate.decoding.prefill import prefill
from speculate.decoding.quantizing import Quantizer
from speculate.decoding.setup import Setup
from speculate.decoding.stats import Stats
from speculate.decoding.token import Token
from speculate.errors import SpeculateError
from speculate.protocols import Commit, Draft, Plan, Round

CLEAR_EVERY: Final = 256
"""Tokens after which the allocator's cache is cleared, as in mlx-lm."""


@final
class Run:
    """The state of one call of `generate`.

    The caches always hold the text as far as it was emitted, except the newest token,
    which is fed with the next block; and, while a block is given out token by token, the
    rest of the block, which can be taken back.

    Args:
        setup: The decoder's parts.
        loan: The target's caches.
        max_tokens: Tokens to emit; `None` without a limit.
        stop_tokens: Ids that end the text.
        stats: Where to count.
    """

    def __init__(
        self,
        setup: Setup,
        loan: Loan,
        max_tokens: int | None,
        stop_tokens: frozenset[int],
        stats: Stats,
    ) -> None:
        self._setup = setup
        self._max_tokens = max_tokens
        self._stop_tokens = stop_tokens
        self._stats = stats
        self._use(loan)
        self._speculating = False
        self.unfed: int | None = None
        self.committed = 0  # tokens fed by this call, for good
        self.finished = max_tokens == 0
        self._plan: Plan | None = None
        self._block: Block | None = None  # the block that is being given out
        self._ready: deque[Token] = deque()  # its tokens, or those a pause left behind
        self._given = 0  # how many of them were emitted
        self._accepted = 0  # how many of them are drafts
        self._newest_id = 0
        self._ahead: Block | None = None  # launched before the block before it was read
        self._kept: Block | None = None  # the newest block that is text, and told as such

    def start(self, prompt: Sequence[int]) -> None:
        """Take in the prompt."""
        prefill(self._setup, self._caches, self._quantizer, prompt)
        self.committed = len(prompt) - 1
        self._group.start()
        self._speculating = True
        self.unfed = prompt[-1]

    def next(self) -> Token:
        """The next token. Synchronises once a block."""
        if not self._ready:
            self._finish_block()
            self._round()
        elif self._block is None:
            # Left behind by a pause: checked already, but taken out of the caches.
            self._feed_newest()
        token = self._ready.popleft()
        if self._block is None:
            self.unfed = token.id
        self._given += 1
        self._count(token)
        return token

    def pause(self) -> None:
        """Bring the caches to the emitted text. `resume` goes on from there."""
        if self._block is not None:
            self._finish_block()
        if self._ahead is not None:
            self._keep(self._ahead, 0)
        elif self._ready:
            self._feed_newest()
        elif self.unfed is not None:
            self._ahead = self._launch(self._newest())
            self._keep(self._ahead, 0)
        self._stop()

    def resume(self, loan: Loan) -> None:
        """Go on with the same text on the caches of `loan`, which hold it."""
        self._use(loan)
        self._group.start()
        self._speculating = True

    def end(self) -> None:
        """Bring the caches to the emitted text, from whatever state. Nothing comes after."""
        if not self._speculating:
            return
        try:
            if self._block is not None and (self._given or self._block is not self._kept):
                self._finish_block(going_on=False)
            else:
                # A round failed half way, or its token was not emitted any more.
                self._group.restore()
                self._ahead = None
            if self._ahead is not None:
                self._keep(self._ahead, 0)
            self._feed_newest()
        finally:
            self._stop()

    def _stop(self) -> None:
        self._group.restore()
        self._group.stop()
        self._speculating = False
        failures = []
        for proposer in self._setup.strategy.proposers:
            try:
                proposer.settle()
            except Exception as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    def _use(self, loan: Loan) -> None:
        group = group_of(loan.caches)
        self._group = CacheGroup(loan.caches) if group is None else group
        self._caches = loan.caches
        self._quantizer = Quantizer(self._setup.kv, loan.caches)

    # One round.

    def _round(self) -> None:
        """Make the next block ready to be given out."""
        block, self._ahead = self._ahead, None
        if block is None:
            plan, depth = self._next_plan()
            self._plan = None
            block = self._draft(plan, depth) if depth else self._launch(self._newest())
        self._given = 0
        if block.drafted == 0 and self._next_plan(1)[1] == 0:
            # The next step is launched before this one is read, as mlx-lm does: the
            # device does not wait for the host.
            self._keep(block, 0)
            self._block = block
            last = self._remaining() == 1
            self._ahead = self._launch(block.decision.tokens, last=last)
            self._plan = None
        else:
            mx.eval(block.results(), self._arrays())
        self._ready.extend(self._tokens(block))
        self._block = block

    def _next_plan(self, pending: int = 0) -> tuple[Plan, int]:
        """The strategy's plan, asked for once, and the depth that fits.

        Args:
            pending: Tokens that are sure to be emitted before.
        """
        remaining = self._remaining()
        left = None if remaining is None else remaining - pending
        if left == 0:
            return Plan(), 0
        if self._plan is None:
            self._plan = self._setup.strategy.plan(left)
        limits = [self._plan.depth, None if left is None else left - 1, self._quantizer.room()]
        return self._plan, min(limit for limit in limits if limit is not None)

    def _draft(self, plan: Plan, depth: int) -> Block:
        if plan.proposer is None:
            raise SpeculateError(f"the strategy planned {plan.depth} drafts by nobody")
        newest = self._newest()
        draft = plan.proposer.propose(newest, depth, self._setup.sampler.choose)
        if draft.tokens.shape[0] > depth:
            raise SpeculateError(
                f"proposer '{plan.proposer.name}' drafted {draft.tokens.shape[0]} tokens, "
                f"at most {depth} were asked for"
            )
        return self._forward(newest, draft, plan)

    def _launch(self, newest: mx.array, *, last: bool = False) -> Block:
        """Start a step without drafts. The logits after the last token are never needed."""
        block = self._forward(newest, Draft(mx.zeros((0,), dtype=mx.uint32)), Plan())
        mx.async_eval(self._arrays() if last else [*block.results(), *self._arrays()])
        return block

    def _forward(self, newest: mx.array, draft: Draft, plan: Plan) -> Block:
        draft = Draft(draft.tokens.astype(mx.uint32))
        fed = mx.concatenate([newest.astype(mx.uint32), draft.tokens])[None]
        out = self._setup.model.forward(fed, self._caches)
        return Block(fed, plan, draft, out, self._setup.sampler.verify(out.logits[0], draft))

    def _tokens(self, block: Block) -> list[Token]:
        """What a block gives, up to a stop token or the end of the budget."""
        ids = block.read()
        self._accepted = len(ids) - 1
        tokens: list[Token] = []
        for index, id_ in enumerate(ids):
            reason = self._finish_reason(id_, index + 1)
            from_draft = index < len(ids) - 1
            name = block.proposer if from_draft else None
            tokens.append(Token(id_, from_draft, name, reason, block.out.logits, index))
            if reason is not None:
                break
        return tokens

    def _finish_reason(self, id_: int, count: int) -> str | None:
        if id_ in self._stop_tokens:
            return "stop"
        return "length" if self._remaining() == count else None

    # What becomes text.

    def _finish_block(self, *, going_on: bool = True) -> None:
        """Keep of a block what was emitted. The rest waits in `_ready` if the text goes on."""
        block, self._block = self._block, None
        if block is None:
            return
        drafts = min(self._given, self._accepted)
        newest = self._given > self._accepted and self._ahead is None
        self._keep(block, drafts)
        self.unfed = self._newest_id if newest else None
        if going_on:
            self._observe(block, min(self._given + len(self._ready) - 1, self._accepted))
        else:
            self._observe(block, drafts)

    def _keep(self, block: Block, drafts: int) -> None:
        """Make the newest token and `drafts` of the drafts text, for good."""
        if block is self._kept:
            return
        self._group.apply_keep(1 + drafts, self._group.plan_keep(1 + drafts))
        self._kept, self.unfed = block, None
        self.committed += 1 + drafts
        self._quantizer.apply()
        self._setup.tell(block.commit(drafts))

    def _feed_newest(self) -> None:
        """Feed the newest token alone, when no block will."""
        if self.unfed is None:
            return
        newest = self._newest()
        out = self._setup.model.forward(newest[None], self._caches)
        self._group.apply_keep(1, self._group.plan_keep(1))
        self.unfed = None
        self.committed += 1
        self._quantizer.apply()
        self._setup.tell(Commit(newest, out.hidden))

    def _observe(self, block: Block, accepted: int) -> None:
        round = Round(
            index=self._stats.rounds,
            proposer=block.proposer if block.drafted else None,
            planned=block.plan.depth,
            drafted=block.drafted,
            accepted=accepted,
            emitted=self._given + len(self._ready),
            cut=self.finished,
        )
        self._stats.count(round)
        self._setup.strategy.observe(round)
        if self._setup.observer is not None:
            self._setup.observer(round)

    def _count(self, token: Token) -> None:
        self._newest_id = token.id
        self.finished = token.finish_reason is not None
        self._stats.emitted_tokens += 1
        if self._stats.emitted_tokens % CLEAR_EVERY == 0:
            mx.clear_cache()

    def _remaining(self) -> int | None:
        if self._max_tokens is None:
            return None
        return self._max_tokens - self._stats.emitted_tokens

    def _newest(self) -> mx.array:
        """`(1,)`, the token that was emitted, or ends the prompt, and is not fed yet."""
        if self.unfed is None:
            raise SpeculateError("there is no token to go on from")
        return mx.array([self.unfed], dtype=mx.uint32)

    def _arrays(self) -> list[mx.array]:
        return [array for cache in self._caches for array in cache.arrays()]
