"""One call of `generate`: the decoding loop, and its clean-up after errors and interrupts."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, final

import attrs
import mlx.core as mx

from speculate.decoding.block import Block, BlockLogprobs, Offered, Token
from speculate.decoding.cache_loan import CachedSequence, PromptCacheLoan
from speculate.decoding.config import DecoderConfig, validated_plan
from speculate.decoding.cost_probe import probe_costs
from speculate.decoding.stats import Stats
from speculate.decoding.target import TargetRunner
from speculate.errors import SpeculateError
from speculate.protocols import Plan, SupportsCosts

CLEAR_EVERY: Final = 256
"""Interval at which MLX's buffer cache is cleared, in tokens, as in mlx-lm."""


@final
class Generation:
    """Decodes one sequence after a prompt.

    The caches hold the emitted sequence except its last token, which is fed with the next block.
    While a block is being emitted they also hold the rest of it, which can be rolled back.

    Args:
        config: The decoder's parts.
        caches: The caller's list, borrowed from `start` on.
        cached: What the decoder remembers of its last call.
        max_tokens: Most tokens to emit; `None` without a limit.
        stop_tokens: Ids that end the sequence.
        stats: The counters.

    Attributes:
        finished: Whether no more tokens will be emitted.
        returned: Whether the caller's list was returned and will not be borrowed again.
    """

    def __init__(
        self,
        config: DecoderConfig,
        caches: list[object],
        cached: CachedSequence,
        max_tokens: int | None,
        stop_tokens: frozenset[int],
        stats: Stats,
    ) -> None:
        self._config = config
        self._loan = PromptCacheLoan(config.model, caches)
        self._cached = cached
        self._target = TargetRunner(config, self._loan)
        self._max_tokens = max_tokens
        self._stop_tokens = stop_tokens
        self._stats = stats
        self._text: list[int] = []  # the prompt and the emitted tokens
        self._position = -1  # position of the prompt's first token; -1 before `start`
        self._committed = 0  # tokens of `_text` in the caches, not counting the current block
        self._plan: Plan | None = None  # plan of the next round, once the strategy made it
        self._block: Block | None = None  # the block being emitted, until it is observed
        self._ahead: Block | None = None  # lookahead block, launched before `_block` was read
        self._offered: Offered | None = None  # the last token, and the state before it
        # Log-probabilities of the current block, and of the previous one, whose last token the
        # caller may still hold.
        self._logprobs: deque[BlockLogprobs] = deque()
        self._began = 0.0  # when the round began, excluding the observer's time
        self._ended = 0.0  # when the previous round was read
        self._recording = False  # whether the caches record for rewinds
        self._settled_at: int | None = None  # length of the list, while `settle` has returned it
        # Arguments of the pending cost measurement: context length and tokens still to emit.
        self._unmeasured: tuple[int, int | None] | None = None
        self.finished: bool = max_tokens == 0
        self.returned: bool = False

    @property
    def pending(self) -> int | None:
        """The last token, if it is in no cache."""
        unfed = self._text[self._committed :]
        return unfed[-1] if unfed else None

    # The loop.

    def tokens(self) -> Iterator[Token]:
        """Decode one sequence, with one host synchronisation per round.

        A round drafts k tokens, has the target score all of them in one forward, and emits the
        accepted prefix and one token of the target's own (Leviathan et al., arXiv 2211.17192).
        Tokens that the caller did not take are not part of the sequence and are rolled back.
        """
        proposers, target, sampler = self._config.proposers, self._target, self._config.sampler
        self._start_clock()
        while not self.finished:
            block, self._ahead = self._ahead, None
            if block is None:
                last_token = self._last_token()
                block, last_id = Block(*self._next_plan()), self._text[-1]
                block.draft = proposers.draft(block.plan, last_id, block.depth, sampler.choose)
                block.out = target.forward(last_token, block.draft)
                block.verification = sampler.verify(last_token, block.draft, block.out.logits[0])
                target.submit(block)
            self._launch_next(block)
            tokens = self._read(block)  # waits for the device
            while tokens:
                self._emit(block, tokens[0])
                yield tokens.popleft()
                self._resume()
            self._start_clock()
            self._keep_emitted()
            self._observe()
            self._measure_costs()

    def _last_token(self) -> mx.array:
        """Return the last token `(1,)`. Feeds any earlier tokens first that the caches lack."""
        unfed = self._text[self._committed :]
        if not unfed:
            raise SpeculateError("there is no token to continue from")
        self._feed(unfed[:-1])
        return mx.array(unfed[-1:], dtype=mx.uint32)

    def _next_plan(self, pending: int = 0) -> tuple[Plan, int]:
        """Return the plan of the round that begins now, and its limited depth.

        At depth 0 the plan has no proposer.

        Args:
            pending: Tokens that will be emitted before this round.
        """
        plan, depth = self._preview_plan(pending)
        self._plan = None
        if depth or plan.proposer is None:
            return plan, depth
        return attrs.evolve(plan, proposer=None), depth

    def _preview_plan(self, pending: int) -> tuple[Plan, int]:
        """Ask the strategy once per round, and limit the depth to what can be used."""
        remaining = self._remaining()
        left = None if remaining is None else remaining - pending
        if self._plan is None:
            self._plan = validated_plan(self._config.strategy.plan(left))
        limits = [self._plan.depth, None if left is None else left - 1]
        limits.append(self._target.room_for_drafts())
        return self._plan, min(limit for limit in limits if limit is not None)

    def _remaining(self) -> int | None:
        """Return how many tokens may still be emitted; `None` without a limit."""
        return None if self._max_tokens is None else self._max_tokens - self._stats.emitted_tokens

    def _launch_next(self, block: Block) -> None:
        """Launch the next forward before this block is read, if neither block has drafts.

        The device then does not wait for the host, as in mlx-lm.
        """
        if not block.drafted and self._unmeasured is None and self._next_is_plain():
            self._keep(block, 0)
            plan, _ = self._next_plan(pending=1)
            self._ahead = self._plain_block(block.verification.tokens, plan)

    def _next_is_plain(self) -> bool:
        """Whether the next round is certain to happen and to have no drafts."""
        if self._remaining() == 1 or not self._config.sampler.supports_lookahead:
            return False
        return self._preview_plan(1)[1] == 0

    def _plain_block(self, last_token: mx.array, plan: Plan) -> Block:
        """Feed the last token `(1,)` alone, possibly unread, and start the device on it."""
        block, sampler = Block(plan, 0), self._config.sampler
        block.draft = self._config.proposers.no_draft
        block.out = self._target.forward(last_token, block.draft)
        block.verification = sampler.verify(last_token, block.draft, block.out.logits[0])
        self._target.submit(block)
        return block

    def _read(self, block: Block) -> deque[Token]:
        """Wait for a block, and return the tokens to emit."""
        if self._ahead is None:
            self._target.evaluate(block)
        ids = block.read(self._config.sampler)
        self._release_logprobs(1)
        logprobs = BlockLogprobs(block.verification.logits, shared=block.drafted > 0)
        self._logprobs.append(logprobs)
        tokens = deque(block.tokens(logprobs, ids, self._remaining(), self._stop_tokens))
        block.length, block.context = len(tokens), self._position + len(self._text)
        block.index = self._stats.rounds
        self._ended = time.perf_counter()
        block.seconds = self._ended - self._began
        self._block = block
        return tokens

    def _emit(self, block: Block, token: Token) -> None:
        """Count a token as emitted; `withdraw` reverts that if it never arrives."""
        emitted = self._stats.emitted_tokens
        if emitted == 0:
            self._config.report(self._stats.prompt_tokens, self._stats.prompt_tokens)
        if emitted % CLEAR_EVERY == 0:
            mx.clear_cache()
        self._offered = Offered(token, block, len(self._text), block.emitted, emitted)
        self._text.append(token.id)
        block.emitted += 1
        self._stats.emitted_tokens += 1
        self.finished = token.finish_reason is not None

    def _keep_emitted(self) -> None:
        """Commit the emitted part of the current block and roll the rest back."""
        block = self._block
        if block is None:
            return
        if self._ahead is not None and block.emitted:
            # The lookahead forward has consumed this block's token: commit its first row.
            self._keep(self._ahead, 0)
        else:
            self._keep(block, min(block.emitted, block.accepted))

    def _keep(self, block: Block, drafts: int) -> None:
        """Commit the block's first token and its first `drafts` drafts, unless it was kept."""
        if block.kept:
            return
        # Before the caches change: `end` completes what an interrupt cuts short.
        block.kept = True
        stop = self._committed + 1 + drafts
        bonus = self._text[stop] if len(self._text) > stop else None
        commit = block.commit(self._text[self._committed : stop], bonus)
        self._target.keep(commit.tokens)
        self._committed = stop
        self._config.proposers.commit(commit)

    def _observe(self) -> None:
        """Count the current block, of which no more tokens will be emitted, and report it.

        Calling it again resumes after an interrupt. The strategy and the observer are notified
        of a round at most once.
        """
        block = self._block
        if block is None or not block.emitted:
            return
        round = block.round(truncated=self.finished)
        if self._stats.rounds == block.index:
            self._stats.count(round)
        self._block = None
        self._config.strategy.observe(round)
        if self._config.observer is not None:
            began = time.perf_counter()
            self._config.observer(round)
            self._began += time.perf_counter() - began

    def _start_clock(self) -> None:
        """Begin the time of the next round."""
        self._began = time.perf_counter()
        if self._ahead is not None:
            self._ahead.overlapped = self._began - self._ended

    def _measure_costs(self) -> None:
        """Measure costs if the strategy needs them, after the first round.

        The measurement takes about 25 forwards. Deferring it keeps the first token fast.
        """
        arguments = self._unmeasured
        if arguments is not None and self._ahead is None and not self.finished:
            self._unmeasured = None
            probe_costs(self._config, self._target, self._text, *arguments)
            self._start_clock()

    # From borrowing the list to returning it.

    def start(self, prompt: list[int], history: Sequence[int]) -> None:
        """Borrow the list, bring the proposers to its sequence, and prefill the prompt.

        Args:
            prompt: Token ids.
            history: Ids of earlier turns.
        """
        config = self._config
        self._loan.take()
        known = self._cached.length_in(self._loan)
        self._position = position = self._loan.length() if known is None else known
        self._target.borrow()
        config.proposers.begin(position, known if self._cached.in_step else None, history)
        try:
            self._target.prefill(prompt)
            context = position + len(prompt) - 1
            config.sampler.begin([*history, *prompt[:-1]], context, self._stop_tokens)
            self._text, self._committed = list(prompt), len(prompt) - 1
            self._target.start()
            self._recording = True
            self._target.begun()
            if isinstance(config.strategy, SupportsCosts):
                self._unmeasured = context, self._remaining()
        except BaseException:
            # The target's caches will be restored; restore the proposers likewise.
            config.proposers.reset(position, history)
            raise

    def _resume(self) -> None:
        """Borrow the list again if `settle` returned it.

        Raises:
            SpeculateError: `settle` failed, which ended the sequence.
        """
        if self.returned:
            raise SpeculateError(
                "settle() failed or was interrupted, which ended this generation: its tokens so "
                "far are in the prompt cache. Start a new generation from there"
            )
        if self._settled_at is not None:
            self._loan.take_again(self._settled_at)
            self._settled_at = None
            self._target.borrow_again(self._committed)
            self._recording = True

    def settle(self) -> None:
        """Bring the caches to the emitted sequence, and return them until the next token.

        If that fails or is interrupted, they are returned for good.
        """
        if self._settled_at is not None or self.returned:
            return
        try:
            self._pause()
            self._settled_at = self._loan.length()
            self._give_back()
        except BaseException:
            self.end()
            raise

    def _pause(self) -> None:
        self._keep_emitted()
        block = self._block
        if self.finished or (block is not None and block.emitted < block.length):
            # At most the rest of this block follows, which is verified already.
            self._feed(self._text[self._committed :])
        elif self._ahead is None and self.pending is not None:
            self._ahead = self._plain_block(self._last_token(), Plan())
            self._keep(self._ahead, 0)
        if self._ahead is not None:
            self._target.evaluate(self._ahead)
        self._target.replay()
        self._stop()

    def withdraw(self, given: Token | None) -> None:
        """Revert the last token if an interrupt kept it from the caller.

        May be called repeatedly. Only `end` may follow.

        Args:
            given: The last token that the caller received.
        """
        offered = self._offered
        if not self.returned and offered is not None and offered.token is not given:
            del self._text[offered.length :]
            offered.block.emitted = offered.in_block
            self._stats.emitted_tokens = offered.emitted

    def end(self) -> None:
        """Bring the caches to the emitted sequence from any state, and return them for good.

        Call `ensure_ended` afterwards, because an interrupt may come in the middle.
        """
        if self.returned:
            return
        try:
            self._complete()
        except Exception:
            self._close()
            raise
        self._close()

    def ensure_ended(self) -> None:
        """Complete an interrupted `end`, and return the caches in any case."""
        try:
            self.end()
        finally:
            self._close()

    def _complete(self) -> None:
        if not self._recording:
            if self._target.give_up_prompt():
                self._text, self._committed = [], 0
            self._observe()
            return
        try:
            self._keep_emitted()
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
            self._target.quantize()
            self._committed = self._target.fed()
            self._feed(self._text[self._committed :], after_failure=True)
            self._target.replay()
        except Exception:
            self._stop()
            raise
        self._stop()

    def _feed(self, ids: Sequence[int], *, after_failure: bool = False) -> None:
        """Feed and commit emitted tokens. A forward ends exactly where quantisation begins."""
        while ids:
            room = self._target.room_for_drafts()
            now = ids if room is None else ids[: room + 1]
            position = self._position + self._committed if after_failure else None
            commit = self._target.feed(now)
            self._committed += len(now)
            self._config.proposers.commit(commit, position)
            ids = ids[len(now) :]

    def _stop(self) -> None:
        self._target.stop()
        self._committed = self._target.fed()
        self._release_logprobs(0)
        try:
            self._config.proposers.settle()
        except Exception:
            self._recording = False
            raise
        self._recording = False

    def _release_logprobs(self, keep: int) -> None:
        """Release the logits of all but the last `keep` blocks."""
        while len(self._logprobs) > keep:
            self._logprobs.popleft().release()

    def _close(self) -> None:
        self._give_back()
        self.returned = True

    def _give_back(self) -> None:
        if self._loan.out:
            self._loan.give_back()
            in_step = not self._config.proposers.interrupted
            if self._position >= 0:
                length = self._position + self._committed
                self._cached.remember(self._loan.list, length, in_step=in_step)
