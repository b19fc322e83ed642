"""The target and its caches, as a run feeds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import mlx.core as mx

from speculate.backends.group import CacheGroup, group_of
from speculate.decoding.block import Block
from speculate.decoding.loan import Loan
from speculate.decoding.prefill import prefill
from speculate.decoding.quantizing import Quantizer
from speculate.decoding.setup import Setup
from speculate.protocols import Draft, Plan


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
        group = group_of(loan.caches)
        self._group = CacheGroup(loan.caches) if group is None else group
        self._quantizer = Quantizer(setup.kv, loan.caches)

    def prefill(self, prompt: Sequence[int]) -> None:
        """Feed all of the prompt but its last token. Nothing of it can be taken back."""
        prefill(self._setup, self._caches, self._quantizer, prompt)

    def start(self) -> None:
        """Record from here on."""
        self._group.start()

    def stop(self) -> None:
        """Take back what was not kept, and record no longer."""
        self._group.restore()
        self._group.stop()

    def restore(self) -> None:
        """Take back what was not kept."""
        self._group.restore()

    def forward(self, newest: mx.array, draft: Draft, plan: Plan) -> Block:
        """Feed the newest token `(1,)` and a draft behind it."""
        draft = Draft(draft.tokens.astype(mx.uint32))
        fed = mx.concatenate([newest.astype(mx.uint32), draft.tokens])[None]
        out = self._setup.model.forward(fed, self._caches)
        return Block(fed, plan, draft, out, self._setup.sampler.verify(out.logits[0], draft))

    def launch(self, newest: mx.array, *, last: bool = False) -> Block:
        """Feed the newest token alone, and let the device begin.

        Args:
            newest: `(1,)`, possibly not read yet.
            last: Nothing comes after it, so that its logits need not be computed.
        """
        block = self.forward(newest, Draft(mx.zeros((0,), dtype=mx.uint32)), Plan())
        mx.async_eval(self._arrays() if last else [*block.results(), *self._arrays()])
        return block

    def evaluate(self, block: Block) -> None:
        """Wait for a block. The round's one synchronisation."""
        mx.eval(block.results(), self._arrays())

    def keep(self, tokens: int) -> None:
        """Make the first `tokens` fed since the last `keep` text, and take the rest back."""
        self._group.apply_keep(tokens, self._group.plan_keep(tokens))
        self._quantizer.apply()

    def room(self) -> int | None:
        """Drafts that the next block may hold, if the caches set a limit."""
        return self._quantizer.room()

    def _arrays(self) -> list[mx.array]:
        return [array for cache in self._caches for array in cache.arrays()]
