"""One generation, round after round: plan, propose, forward, verify, emit, keep, observe.

`next` emits one token. The previous block is kept and observed when the next round begins, since
only tokens that were emitted are committed; `target` does the steps that involve the model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, final

import attrs
import mlx.core as mx

from speculate.decoding.block import Block, BlockLogprobs, Token
from speculate.decoding.config import DecoderConfig
from speculate.decoding.cost_probe import probe_costs
from speculate.decoding.loan import Loan
from speculate.decoding.stats import Account, Stats
from speculate.decoding.target import TargetRunner
from speculate.errors import SpeculateError
from speculate.protocols import Plan, UsesCosts

CLEAR_EVERY: Final = 256
"""Interval at which MLX's buffer cache is cleared, in tokens, as in mlx-lm."""


@final
class Planner:
    """Asks the strategy for one plan per round, and limits the depth to what can be used.

    Args:
        config: The decoder's parts.
        stats: Counters of the emitted tokens.
        max_tokens: Most tokens to emit; `None` without a limit.
    """

    def __init__(self, config: DecoderConfig, stats: Stats, max_tokens: int | None) -> None:
        self._config = config
        self._stats = stats
        self._max_tokens = max_tokens
        self._plan: Plan | None = None

    def remaining(self) -> int | None:
        """Return how many tokens may still be emitted; `None` without a limit."""
        return None if self._max_tokens is None else self._max_tokens - self._stats.emitted_tokens

    def next_plan(self, room: int | None, *, pending: int = 0) -> tuple[Plan, int]:
        """Return the plan of the round that begins now, and its limited depth.

        At depth 0 the plan has no proposer.

        Args:
            room: Most drafts that the caches allow; `None` without a limit.
            pending: Tokens that will be emitted before this round.
        """
        plan, depth = self._look(room, pending)
        self._plan = None
        if depth or plan.proposer is None:
            return plan, depth
        return attrs.evolve(plan, proposer=None), depth

    def next_is_plain(self, room: int | None) -> bool:
        """Whether the next round is certain to happen and to have no drafts."""
        if self.remaining() == 1 or not self._config.sampler.launches_ahead:
            return False
        return self._look(room, 1)[1] == 0

    def _look(self, room: int | None, pending: int) -> tuple[Plan, int]:
        remaining = self.remaining()
        left = None if remaining is None else remaining - pending
        if self._plan is None:
            plan: object = self._config.strategy.plan(left)
            if not isinstance(plan, Plan):
                kind = type(plan).__name__
                raise SpeculateError(f"the strategy's plan() returned a {kind}, not a Plan")
            self._plan = plan
            if self._plan.depth < 0:
                raise SpeculateError(f"the strategy planned {self._plan.depth} drafts")
        limits = [self._plan.depth, None if left is None else left - 1, room]
        return self._plan, min(limit for limit in limits if limit is not None)


@final
@attrs.frozen(eq=False)
class Offered:
    """A token on its way to the caller, with the state to restore if it does not arrive.

    Attributes:
        token: The token.
        length: Previous length of the sequence.
        given: Tokens of its block emitted before.
        emitted: Tokens emitted before, in total.
        unfed: Previous token that was not fed yet.
    """

    token: Token
    length: int
    given: int
    emitted: int
    unfed: int | None


@final
class Run:
    """The state of one call of `generate`.

    The caches hold the emitted sequence except its last token, which is fed with the next block.
    While a block is being emitted they also hold the rest of it, which can be rolled back.

    Args:
        config: The decoder's parts.
        loan: The target's caches.
        max_tokens: Most tokens to emit; `None` without a limit.
        stop_tokens: Ids that end the sequence.
        stats: The counters.

    Attributes:
        unfed: The last token, if it was emitted but not fed yet.
        committed: Tokens in the caches, not counting those that can be rolled back.
        finished: Whether no more tokens will be emitted.
    """

    def __init__(
        self,
        config: DecoderConfig,
        loan: Loan,
        max_tokens: int | None,
        stop_tokens: frozenset[int],
        stats: Stats,
    ) -> None:
        self._config = config
        self._target = TargetRunner(config, loan)
        self._planner = Planner(config, stats, max_tokens)
        self._account = Account(config, stats)
        self._stop_tokens = stop_tokens
        self._stats = stats
        self._active = False
        self._block: Block | None = None  # the block being emitted
        self._ready: deque[Token] = deque()  # its remaining tokens, also after a pause
        self._given = 0  # its emitted tokens
        self._accepted = 0  # its accepted drafts
        self._ahead: Block | None = None  # lookahead block, launched before `_block` was read
        self._kept: Block | None = None  # the last block that was committed
        # Of the current block and the previous one, whose last token the caller may still hold.
        self._logprobs: deque[BlockLogprobs] = deque()
        self._last_token = 0
        self._offered: Offered | None = None  # the last token, and the state before it
        self._text: list[int] = []  # the sequence since the target runner was created
        self.unfed: int | None = None
        self.committed: int = 0
        self._position = 0  # of the prompt's first token in the whole sequence
        self._base = 0  # tokens committed before the target runner was created
        self.finished: bool = max_tokens == 0
        # Arguments of the pending cost measurement: context length and tokens still to emit.
        self._unmeasured: tuple[int, int | None] | None = None

    def start(self, prompt: Sequence[int], position: int, history: Sequence[int]) -> None:
        """Prefill the prompt.

        Args:
            prompt: Token ids.
            position: Position of its first token in the whole sequence.
            history: Ids of earlier turns, for logits processors.
        """
        self._text, self._position = list(prompt), position
        self._target.prefill(prompt)
        before = [*history, *prompt[:-1]]
        self._config.sampler.begin(before, position + len(prompt) - 1, self._stop_tokens)
        self.committed = len(prompt) - 1
        self.unfed = prompt[-1]
        self._target.start()
        self._active = True
        self._target.begun()
        front = position + self.committed
        if isinstance(self._config.strategy, UsesCosts):
            self._unmeasured = front, self._planner.remaining()

    def next(self) -> Token:
        """Return the next token. Synchronises once per block."""
        if not self._ready:
            self._measure()
            with self._account.timed(launched=self._ahead is not None):
                self._keep_block()
                self._observe()
                self._round()
        elif self._block is None:
            # Verified before a pause, which rolled the rest of the block back.
            self._feed_last()
        if self._stats.emitted_tokens == 0:
            self._config.report(self._stats.prompt_tokens, self._stats.prompt_tokens)
        if self._stats.emitted_tokens % CLEAR_EVERY == 0:
            mx.clear_cache()
        return self._offer()

    def _offer(self) -> Token:
        """Count the next token as emitted; `withdraw` reverts that if it never arrives."""
        token, emitted = self._ready[0], self._stats.emitted_tokens
        self._offered = Offered(token, len(self._text), self._given, emitted, self.unfed)
        self._last_token = token.id
        self._text.append(token.id)
        if self._block is None:
            self.unfed = token.id
        self._given += 1
        self._stats.emitted_tokens += 1
        self.finished = token.finish_reason is not None
        return self._ready.popleft()

    def withdraw(self, given: Token | None) -> None:
        """Revert the last token if an interrupt kept it from the caller.

        May be called repeatedly. Only `end` may follow.

        Args:
            given: The last token that the caller received.
        """
        offered = self._offered
        if offered is not None and offered.token is not given:
            del self._text[offered.length :]
            self._given, self.unfed = offered.given, offered.unfed
            self._stats.emitted_tokens = offered.emitted

    def _measure(self) -> None:
        """Measure costs if the strategy needs them, once the first token was emitted.

        The measurement takes about 25 forwards. Deferring it keeps the first token fast.
        """
        place = self._unmeasured
        if place is None or not self._stats.emitted_tokens or self._ahead is not None:
            return
        self._unmeasured = None
        self._keep_block()
        self._observe()
        probe_costs(self._config, self._target, self._text, *place)

    def pause(self) -> None:
        """Bring the caches to the emitted sequence. `resume` continues from there."""
        self._keep_block()
        if self._ready:
            self._feed_last()
        elif self._ahead is None and self.unfed is not None:
            self._ahead = self._target.submit(self._unfed(), Plan())
            self._keep(self._ahead, 0)
        if self._ahead is not None:
            self._target.evaluate(self._ahead)
        self._target.replay()
        self._stop()

    def resume(self, loan: Loan) -> None:
        """Continue on the caches of `loan`, which hold the emitted sequence."""
        self._target = TargetRunner(self._config, loan)
        self._base, self._text = self.committed, []
        self._target.start()
        self._active = True

    def end(self) -> None:
        """Bring the caches to the emitted sequence from any state, and finish.

        Calling it again resumes after an interrupt.
        """
        if not self._active:
            if self._target.give_up_prompt():
                self.committed, self.unfed = 0, None
            self._observe()
            return
        try:
            if self._block is not None and (self._given or self._block is not self._kept):
                self._keep_block()
            else:
                # A round failed midway, or the lookahead token was never emitted.
                self._target.restore()
                self._ahead = None
            self._observe()
        except Exception:
            self._feed_rest()
            raise
        self._feed_rest()

    def _feed_rest(self) -> None:
        """Feed the part of the emitted sequence that the caches lack.

        Trusts the lengths that the caches report, because an interrupt may have come before
        this object's own counters were updated.
        """
        try:
            self._target.restore()
            fed = self._target.fed()
            missing = self._text[fed:]
            self.unfed = missing[-1] if missing else None
            commit = self._target.feed(missing) if missing else None
            self.unfed = None
            self._target.quantize()
            if commit is not None:
                self._config.proposers.commit(commit, self._position + self._base + fed)
            self._target.replay()
        except Exception:
            self._stop()
            raise
        self._stop()

    def _release_logprobs(self, keep: int) -> None:
        """Release the logits of all but the last `keep` blocks."""
        while len(self._logprobs) > keep:
            self._logprobs.popleft().release()

    def _stop(self) -> None:
        self._target.stop()
        self.committed = self._base + self._target.fed()
        self._release_logprobs(0)
        try:
            self._config.proposers.settle()
        except Exception:
            self._active = False
            raise
        self._active = False

    def _round(self) -> None:
        """Verify the next block and queue its tokens."""
        block, self._ahead = self._ahead, None
        if block is None:
            plan, depth = self._planner.next_plan(self._target.room_for_drafts())
            block = self._target.draft(self._unfed(), plan, depth)
        self._given = 0
        if block.drafted == 0 and self._launches_ahead():
            # Launch the next step before reading this one, as mlx-lm does, so that the device
            # does not wait for the host.
            self._keep(block, 0)
            self._block = block
            plan, _ = self._planner.next_plan(self._target.room_for_drafts(), pending=1)
            self._ahead = self._target.submit(block.decision.tokens, plan)
        else:
            self._target.evaluate(block)
        ids = block.read()
        self._accepted = len(ids) - 1
        self._release_logprobs(1)
        logprobs = BlockLogprobs(block.decision.logits, shared=block.drafted > 0)
        self._logprobs.append(logprobs)
        remaining = self._planner.remaining()
        self._ready.extend(block.tokens(logprobs, ids, remaining, self._stop_tokens))
        self._block = block
        self._account.open(block, self._position + self._base + len(self._text))

    def _launches_ahead(self) -> bool:
        """Whether to launch the next step now. A pending measurement needs an idle device."""
        return self._unmeasured is None and self._planner.next_is_plain(
            self._target.room_for_drafts()
        )

    def _keep_block(self) -> None:
        """Commit the emitted part of the current block and roll the rest back."""
        block, self._block = self._block, None
        if block is None:
            return
        if self._ahead is not None and self._given:
            # This block's token was emitted. The lookahead block has fed it already: commit that.
            self._keep(self._ahead, 0)
            return
        own = self._given > self._accepted
        self._keep(block, min(self._given, self._accepted), self._last_token if own else None)

    def _keep(self, block: Block, drafts: int, bonus: int | None = None) -> None:
        """Commit the block's first token and its first `drafts` drafts.

        Args:
            block: The block. Nothing happens if it was committed before.
            drafts: Number of accepted drafts.
            bonus: The bonus token, if it was emitted.
        """
        commit = None
        if block is not self._kept:
            start = self.committed - self._base
            stop = start + 1 + drafts
            following = self._text[stop] if len(self._text) > stop else None
            commit = self._target.keep(block, self._text[start:stop], following)
        self._kept, self.unfed = block, bonus
        if commit is not None:
            self.committed += 1 + drafts
            self._target.quantize()
            self._config.proposers.commit(commit)

    def _feed_last(self) -> None:
        """Feed the last token alone, if no block will."""
        if self.unfed is None:
            return
        commit = self._target.feed([self.unfed])
        self.unfed = None
        self.committed += 1
        self._target.quantize()
        self._config.proposers.commit(commit)

    def _observe(self) -> None:
        """Record the current block, of which no more tokens will be emitted."""
        self._account.close(self._given, self._accepted, cut=self.finished)

    def _unfed(self) -> mx.array:
        """Return the last token `(1,)`, which is not fed yet."""
        if self.unfed is None:
            raise SpeculateError("there is no token to continue from")
        return mx.array([self.unfed], dtype=mx.uint32)
