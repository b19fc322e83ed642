"""What became of a round, counted and told once nothing more of it will be emitted."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, cast, final

import attrs
import mlx.core as mx

from speculate.decoding.block import Block, Scores, Token, tokens_of
from speculate.decoding.config import Setup
from speculate.decoding.cost_probe import measure_costs
from speculate.decoding.loan import Loan
from speculate.decoding.stats import Stats
from speculate.decoding.target import Target
from speculate.errors import SpeculateError
from speculate.protocols import Plan, Round, UsesCosts


@final
class Account:
    """Times rounds, and tells the strategy and the observer of them, in order.

    Args:
        setup: The decoder's parts.
        stats: Where to count.
    """

    def __init__(self, setup: Setup, stats: Stats) -> None:
        self._setup = setup
        self._stats = stats
        self._block: Block | None = None
        self._seconds = 0.0
        self._ahead = 0.0
        self._ended = 0.0
        self._observing = 0.0
        self._context = 0
        self._index = 0

    @contextmanager
    def timed(self, *, launched: bool) -> Iterator[None]:
        """Time the round that is made meanwhile, without what the observer takes.

        Args:
            launched: Its forward was launched in the round before.
        """
        began, self._observing = time.perf_counter(), 0.0
        ahead = began - self._ended if launched else 0.0
        yield
        self._ended = time.perf_counter()
        self._seconds = self._ended - began - self._observing
        self._ahead = ahead

    def open(self, block: Block, context: int) -> None:
        """A block is ready to be given out.

        Args:
            block: The block.
            context: Tokens of text in front of what it gives.
        """
        self._block, self._context, self._index = block, context, self._stats.rounds

    def close(self, emitted: int, accepted: int, *, cut: bool) -> None:
        """Nothing more of the open block will be emitted.

        Can be called again: it goes on where an interrupt came. Strategy and observer hear of a
        round once at most.

        Args:
            emitted: Tokens that came out of it.
            accepted: Drafts that stood.
            cut: The text ended in this block.
        """
        block = self._block
        if block is None or not emitted:
            return
        round = Round(
            index=self._index,
            proposer=block.proposer if block.drafted else None,
            planned=block.plan.depth,
            drafted=block.drafted,
            accepted=min(emitted, accepted),
            emitted=emitted,
            cut=cut,
            seconds=self._seconds,
            context=self._context,
            confidence=[cast(float, value.item()) for value in block.confidence],
            predicted=block.plan.predicted,
            plain_seconds=block.plan.plain_seconds,
            asked=block.proposer,
            ahead=self._ahead,
        )
        if self._stats.rounds == self._index:
            self._stats.count(round)
        self._block = None
        self._setup.strategy.observe(round)
        if self._setup.observer is not None:
            began = time.perf_counter()
            self._setup.observer(round)
            self._observing = time.perf_counter() - began


@final
class Planner:
    """Asks the strategy once a round, and never for more than there is room for.

    Args:
        setup: The decoder's parts.
        stats: Counts what was emitted.
        max_tokens: Tokens to emit; `None` without a limit.
    """

    def __init__(self, setup: Setup, stats: Stats, max_tokens: int | None) -> None:
        self._setup = setup
        self._stats = stats
        self._max_tokens = max_tokens
        self._plan: Plan | None = None

    def remaining(self) -> int | None:
        """Tokens still to be emitted; `None` without a limit."""
        return None if self._max_tokens is None else self._max_tokens - self._stats.emitted_tokens

    def take(self, room: int | None, *, pending: int = 0) -> tuple[Plan, int]:
        """The plan of the round that begins now, and the depth that fits.

        Where none does, nobody is asked.

        Args:
            room: Drafts that the caches have room for, if they set a limit.
            pending: Tokens that will be emitted before.
        """
        plan, depth = self._look(room, pending)
        self._plan = None
        if depth or plan.proposer is None:
            return plan, depth
        return attrs.evolve(plan, proposer=None), depth

    def goes_on_plainly(self, room: int | None) -> bool:
        """Whether the step after the present token is sure to be made, without a draft."""
        if self.remaining() == 1 or not self._setup.sampler.launches_ahead:
            return False
        return self._look(room, 1)[1] == 0

    def _look(self, room: int | None, pending: int) -> tuple[Plan, int]:
        remaining = self.remaining()
        left = None if remaining is None else remaining - pending
        if self._plan is None:
            plan: object = self._setup.strategy.plan(left)
            if not isinstance(plan, Plan):
                kind = type(plan).__name__
                raise SpeculateError(f"the strategy's plan() gave no Plan but a {kind}")
            self._plan = plan
            if self._plan.depth < 0:
                raise SpeculateError(f"the strategy planned {self._plan.depth} drafts")
        limits = [self._plan.depth, None if left is None else left - 1, room]
        return self._plan, min(limit for limit in limits if limit is not None)


CLEAR_EVERY: Final = 256
"""Tokens after which the allocator's cache is cleared, as in mlx-lm."""


@final
@attrs.frozen(eq=False)
class Offered:
    """A token on its way to the caller, and what was before it was counted.

    Attributes:
        token: The token.
        length: Tokens of text.
        given: Tokens of its block that were emitted.
        emitted: Tokens that were emitted in all.
        unfed: The token that was in no cache.
    """

    token: Token
    length: int
    given: int
    emitted: int
    unfed: int | None


@final
class Run:
    """The state of one call of `generate`.

    The caches hold the text as far as it was emitted, except the newest token, which is
    fed with the next block. While a block is given out token by token they also hold the
    rest of it, which can be taken back.

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
        self._target = Target(setup, loan)
        self._planner = Planner(setup, stats, max_tokens)
        self._account = Account(setup, stats)
        self._stop_tokens = stop_tokens
        self._stats = stats
        self._active = False
        self._block: Block | None = None  # the block that is being given out
        self._ready: deque[Token] = deque()  # its tokens, or what a pause left of them
        self._given = 0  # how many of its tokens were emitted
        self._accepted = 0  # how many of its tokens are drafts
        self._ahead: Block | None = None  # launched before the block before it was read
        self._kept: Block | None = None  # the newest block that is text
        # Of the block that is being given out and the one before. Whoever looks at each token for
        # a moment has dropped all those of the latter.
        self._scores: deque[Scores] = deque()
        self._newest = 0
        self._offered: Offered | None = None  # the newest token, and what was before it
        self._text: list[int] = []  # from where the target began to be fed
        self.unfed: int | None = None
        self.committed: int = 0
        self._position = 0  # in the whole text, of the prompt's first token
        self._base = 0
        self.finished: bool = max_tokens == 0
        # Where costs are to be asked for: tokens in front, and tokens to emit from there.
        self._unmeasured: tuple[int, int | None] | None = None

    def start(self, prompt: Sequence[int], position: int, history: Sequence[int]) -> None:
        """Take in the prompt.

        Args:
            prompt: Ids.
            position: Position in the text of its first.
            history: Ids of earlier turns, for processors.
        """
        self._text, self._position = list(prompt), position
        self._target.prefill(prompt)
        before = [*history, *prompt[:-1]]
        self._setup.sampler.begin(before, position + len(prompt) - 1, self._stop_tokens)
        self.committed = len(prompt) - 1
        self.unfed = prompt[-1]
        self._target.start()
        self._active = True
        self._target.begun()
        front = position + self.committed
        if isinstance(self._setup.strategy, UsesCosts):
            self._unmeasured = front, self._planner.remaining()

    def next(self) -> Token:
        """The next token. Synchronises once a block."""
        if not self._ready:
            self._measure()
            with self._account.timed(launched=self._ahead is not None):
                self._keep_block()
                self._observe()
                self._round()
        elif self._block is None:
            # What a pause left behind: checked already, but taken out of the caches.
            self._feed_newest()
        if self._stats.emitted_tokens == 0:
            self._setup.report(self._stats.prompt_tokens, self._stats.prompt_tokens)
        if self._stats.emitted_tokens % CLEAR_EVERY == 0:
            mx.clear_cache()
        return self._offer()

    def _offer(self) -> Token:
        """Count the next token. It is text once the caller has it; see `withdraw`."""
        token, emitted = self._ready[0], self._stats.emitted_tokens
        self._offered = Offered(token, len(self._text), self._given, emitted, self.unfed)
        self._newest = token.id
        self._text.append(token.id)
        if self._block is None:
            self.unfed = token.id
        self._given += 1
        self._stats.emitted_tokens += 1
        self.finished = token.finish_reason is not None
        return self._ready.popleft()

    def withdraw(self, given: Token | None) -> None:
        """Take the newest token back if an interrupt kept it from the caller: it is no text.

        Can be called again. Nothing but the end may come after.

        Args:
            given: The newest token that the caller was given.
        """
        offered = self._offered
        if offered is not None and offered.token is not given:
            del self._text[offered.length :]
            self._given, self.unfed = offered.given, offered.unfed
            self._stats.emitted_tokens = offered.emitted

    def _measure(self) -> None:
        """Measure costs where the strategy misses them, once a token is out.

        About 25 forwards: the first token does not wait for them, nor does who wants no more.
        """
        place = self._unmeasured
        if place is None or not self._stats.emitted_tokens or self._ahead is not None:
            return
        self._unmeasured = None
        self._keep_block()
        self._observe()
        measure_costs(self._setup, self._target, self._text, *place)

    def pause(self) -> None:
        """Bring the caches to the emitted text. `resume` goes on from there."""
        self._keep_block()
        if self._ready:
            self._feed_newest()
        elif self._ahead is None and self.unfed is not None:
            self._ahead = self._target.launch(self._unfed(), Plan())
            self._keep(self._ahead, 0)
        if self._ahead is not None:
            self._target.evaluate(self._ahead)
        self._target.feed_owed()
        self._stop()

    def resume(self, loan: Loan) -> None:
        """Go on with the same text on the caches of `loan`, which hold it."""
        self._target = Target(self._setup, loan)
        self._base, self._text = self.committed, []
        self._target.start()
        self._active = True

    def end(self) -> None:
        """Bring the caches to the emitted text, from whatever state. Nothing comes after.

        Can be called again: it does what is left to do, if an interrupt came.
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
                # A round failed half way, or what was launched ahead was never emitted.
                self._target.restore()
                self._ahead = None
            self._observe()
        except Exception:
            self._feed_rest()
            raise
        self._feed_rest()

    def _feed_rest(self) -> None:
        """Bring the caches to the emitted text, whatever they hold of it.

        What they say counts, and not what was noted: an interrupt may have come between.
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
                self._setup.drafting.tell(commit, self._position + self._base + fed)
            self._target.feed_owed()
        except Exception:
            self._stop()
            raise
        self._stop()

    def _release_scores(self, newest: int) -> None:
        """Let go of the logits of all blocks but so many."""
        while len(self._scores) > newest:
            self._scores.popleft().release()

    def _stop(self) -> None:
        self._target.stop()
        self.committed = self._base + self._target.fed()
        self._release_scores(0)
        try:
            self._setup.drafting.settle()
        except Exception:
            self._active = False
            raise
        self._active = False

    def _round(self) -> None:
        """Make the next block ready to be given out."""
        block, self._ahead = self._ahead, None
        if block is None:
            plan, depth = self._planner.take(self._target.room())
            block = self._target.draft(self._unfed(), plan, depth)
        self._given = 0
        if block.drafted == 0 and self._launches_ahead():
            # The next step is launched before this one is read, as in mlx-lm: the device
            # does not wait for the host.
            self._keep(block, 0)
            self._block = block
            plan, _ = self._planner.take(self._target.room(), pending=1)
            self._ahead = self._target.launch(block.decision.tokens, plan)
        else:
            self._target.evaluate(block)
        ids = block.read()
        self._accepted = len(ids) - 1
        self._release_scores(1)
        scores = Scores(block.decision.logits, shared=block.drafted > 0)
        self._scores.append(scores)
        remaining = self._planner.remaining()
        self._ready.extend(tokens_of(block, scores, ids, remaining, self._stop_tokens))
        self._block = block
        self._account.open(block, self._position + self._base + len(self._text))

    def _launches_ahead(self) -> bool:
        """Whether the next step is plain and begins now. What is measured must run alone."""
        return self._unmeasured is None and self._planner.goes_on_plainly(self._target.room())

    def _keep_block(self) -> None:
        """Keep of a block what was emitted. The rest is text only once it is emitted, too."""
        block, self._block = self._block, None
        if block is None:
            return
        if self._ahead is not None and self._given:
            # The token that was launched ahead is emitted now.
            self._keep(self._ahead, 0)
            return
        own = self._given > self._accepted
        self._keep(block, min(self._given, self._accepted), self._newest if own else None)

    def _keep(self, block: Block, drafts: int, newest: int | None = None) -> None:
        """Make the block's first token and `drafts` of its drafts text, for good.

        Args:
            block: Does nothing if it was kept before.
            drafts: Of its drafts.
            newest: The token that was emitted behind them and is not fed.
        """
        commit = None
        if block is not self._kept:
            start = self.committed - self._base
            stop = start + 1 + drafts
            behind = self._text[stop] if len(self._text) > stop else None
            commit = self._target.keep(block, self._text[start:stop], behind)
        self._kept, self.unfed = block, newest
        if commit is not None:
            self.committed += 1 + drafts
            self._target.quantize()
            self._setup.drafting.tell(commit)

    def _feed_newest(self) -> None:
        """Feed the newest token alone, when no block will."""
        if self.unfed is None:
            return
        commit = self._target.feed([self.unfed])
        self.unfed = None
        self.committed += 1
        self._target.quantize()
        self._setup.drafting.tell(commit)

    def _observe(self) -> None:
        """Tell what became of a block, once nothing more of it will be emitted."""
        self._account.close(self._given, self._accepted, cut=self.finished)

    def _unfed(self) -> mx.array:
        """`(1,)`, the token that ends the text and is not fed yet."""
        if self.unfed is None:
            raise SpeculateError("there is no token to go on from")
        return mx.array([self.unfed], dtype=mx.uint32)
