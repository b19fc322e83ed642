"""The target and its caches, as a run feeds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import attrs
import mlx.core as mx

from speculate.backends.group import CacheGroup
from speculate.backends.joining import group_of
from speculate.decoding.block import Block
from speculate.decoding.confidence import Confidence
from speculate.decoding.drafting import in_range
from speculate.decoding.loan import Loan
from speculate.decoding.prefill import prefill
from speculate.decoding.quantizing import Quantizer
from speculate.decoding.setup import Setup
from speculate.protocols import Commit, Draft, Plan, Rollbackable


@final
class Target:
    """What is fed since the last `keep` can be taken back.

    Args:
        setup: The decoder's parts.
        loan: The caller's caches.
    """

    def __init__(self, setup: Setup, loan: Loan) -> None:
        self._setup = setup
        self._caches = loan.caches
        self._start = loan.length()
        group = group_of(loan.caches)
        self._group = CacheGroup(loan.caches) if group is None else group
        self._quantizer = Quantizer(setup.kv, loan.caches)
        self._undo: tuple[list[Rollbackable], list[Callable[[], None]]] | None = None
        # From the host: zeros would wait to be made in the thread that begins the text.
        self._nothing = Draft(mx.array([], dtype=mx.uint32))

    def prefill(self, prompt: Sequence[int]) -> None:
        """Feed all of the prompt but its last token.

        Until `begun` it can be given up as a whole.
        """
        before = list(self._caches)
        self._undo = (before, [cache.checkpoint() for cache in before])
        prefill(self._setup, self._caches, self._quantizer, prompt)

    def start(self) -> None:
        """Record from here on."""
        self._group.start()

    def begun(self) -> None:
        """The prompt is text now, and stays."""
        self._undo = None

    def give_up_prompt(self) -> bool:
        """Return to what the caches held before a prompt that was not begun with.

        Can be called again if it was interrupted.

        Returns:
            Whether there is such a prompt.
        """
        if self._undo is None:
            return False
        before, go_back = self._undo
        self._group.stop()
        self._quantizer.replace(before)
        for restore in go_back:
            restore()
        return True

    def stop(self) -> None:
        """Take back what was not kept, and record no longer."""
        self._group.restore()
        self._group.stop()

    def restore(self) -> None:
        """Take back what was not kept."""
        self._group.restore()

    def forward(self, newest: mx.array, draft: Draft, plan: Plan) -> Block:
        """Feed the newest token `(1,)` and a draft behind it."""
        newest = newest.astype(mx.uint32)
        fed = newest[None]
        if draft.tokens.shape[0]:
            draft = in_range(draft, self._setup.model.vocab_size)
            fed = mx.concatenate([newest, draft.tokens])[None]
        out = self._setup.model.forward(fed, self._caches)
        decision = self._setup.sampler.verify(newest, draft, out.logits[0])
        return Block(plan, draft, out, decision)

    def draft(self, newest: mx.array, plan: Plan, depth: int) -> Block:
        """Feed the newest token `(1,)` and up to `depth` drafts, by whom is planned."""
        if not depth:
            return self.launch(newest, plan)
        choose = self._setup.sampler.choose
        noting = Confidence(choose) if plan.confidence else None
        draft = self._setup.drafting.draft(plan, newest, depth, noting or choose)
        if not draft.tokens.shape[0]:
            return self.launch(newest, plan)
        block = self.forward(newest, draft, plan)
        return block if noting is None else attrs.evolve(block, confidence=noting.noted)

    def launch(self, newest: mx.array, plan: Plan) -> Block:
        """Feed the newest token `(1,)` alone, perhaps not read yet, and let the device begin."""
        block = self.forward(newest, self._nothing, plan)
        mx.async_eval(block.results(), self._arrays())
        return block

    def feed(self, ids: Sequence[int]) -> Commit:
        """Feed tokens that are text already: their logits are never computed."""
        tokens = mx.array(list(ids), dtype=mx.uint32)
        out = self._setup.model.forward(tokens[None], self._caches)
        self._keep(tokens)
        return Commit(tokens, out.hidden, ids=ids)

    def rehearse(self, ids: Sequence[int]) -> None:
        """Feed tokens, wait for what would come next, and take them back."""
        out = self._setup.model.forward(mx.array([list(ids)], dtype=mx.uint32), self._caches)
        mx.eval(mx.argmax(out.logits[0], axis=-1), self._arrays())
        self._group.restore()

    def fed(self) -> int:
        """Tokens that are text and were fed since this was made, owed ones included."""
        owed = self._group.owed()
        length = max(cache.length() for cache in self._caches)
        return length - self._start + (0 if owed is None else owed.shape[1])

    def evaluate(self, block: Block) -> None:
        """Wait for a block. The round's one synchronisation."""
        mx.eval(block.results(), self._arrays())

    def feed_owed(self) -> None:
        """Feed what is text and was taken out of caches that could not stop inside a block."""
        owed = self._group.take_owed()
        if owed is not None:
            self._setup.model.forward(owed, self._caches)
            self._group.apply_keep(owed.shape[1], self._group.plan_keep(owed.shape[1]))

    def keep(self, block: Block, ids: Sequence[int], newest: int | None) -> Commit:
        """Make a block's first tokens, `ids`, text; take the rest back.

        Args:
            block: What was fed.
            ids: Its first token, and the drafts behind it that stand.
            newest: The token behind them, where it was emitted.
        """
        commit = block.commit(ids, newest)
        self._keep(commit.tokens)
        return commit

    def _keep(self, tokens: mx.array) -> None:
        count = tokens.shape[0]
        self._group.apply_keep(count, self._group.plan_keep(count))
        self._setup.sampler.keep(tokens)

    def quantize(self) -> None:
        """Quantise rows where that is due now that a block was kept."""
        self._quantizer.apply()

    def room(self) -> int | None:
        """Drafts that the next block may hold, if the caches set a limit."""
        return self._quantizer.room()

    def _arrays(self) -> list[mx.array]:
        return [array for cache in self._caches for array in cache.arrays()]
