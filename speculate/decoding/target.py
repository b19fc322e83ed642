"""How likely a proposer found what it drafted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import attrs
import mlx.core as mx

from speculate._mx import arrays_of
from speculate.backends.group import CacheGroup, group_of
from speculate.decoding.block import Block
from speculate.decoding.config import KVQuantization, Setup
from speculate.decoding.loan import Loan
from speculate.decoding.proposers import in_range
from speculate.errors import OptionError
from speculate.protocols import Choice, Choose, Commit, Draft, Plan, Rollbackable


@final
class Confidence:
    """Picks tokens as `choose` does, and notes the probability of each, on the device.

    Args:
        choose: How tokens are picked.
    """

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self.noted: list[mx.array] = []

    def __call__(self, logits: mx.array, index: int, /) -> Choice:
        choice = self._choose(logits, index)
        row = logits[0].astype(mx.float32)
        self.noted.append(mx.exp(row[choice.token] - mx.logsumexp(row)))
        return choice


@final
class Quantizer:
    """Replaces caches in a list once the text is long enough.

    Args:
        options: Whether and when; `None` does nothing.
        caches: One model's caches. Entries are replaced in this list.

    Raises:
        OptionError: A sliding window cannot be quantised. mlx-lm would find out in the
            middle of the answer.
    """

    def __init__(self, options: KVQuantization | None, caches: list[Rollbackable]) -> None:
        self._options = options
        self._caches = caches
        self._group = group_of(caches)
        self._done = options is None
        if options is not None:
            self._refuse_windows()

    def apply(self) -> None:
        """Quantise what is due. Call it after every forward whose tokens are kept."""
        if self._options is None or self._done:
            return
        from speculate.backends.kv import RewindableKVCache, quantize

        plain = {n: c for n, c in enumerate(self._caches) if isinstance(c, RewindableKVCache)}
        if any(cache.length() < self._options.start for cache in plain.values()):
            return
        size, bits = self._options.group_size, self._options.bits
        # All are packed before any is replaced: a failure changes nothing.
        packed = {layer: quantize(cache, size, bits) for layer, cache in plain.items()}
        self.replace([packed.get(n, cache) for n, cache in enumerate(self._caches)])
        self._done = True

    def check(self) -> None:
        """Refuse rows that cannot be packed, while nothing was emitted.

        Raises:
            OptionError: Their width is not a multiple of the group size.
        """
        if self._options is None:
            return
        from speculate.backends.kv import RewindableKVCache

        for layer, cache in enumerate(self._caches):
            if isinstance(cache, RewindableKVCache) and cache.keys is not None:
                width, size = cache.keys.shape[-1], self._options.group_size
                if width % size:
                    raise OptionError(
                        f"kv_group_size={size} does not divide the {width} numbers of a row in "
                        f"layer {layer}: use a smaller group"
                    )

    def replace(self, caches: Sequence[Rollbackable]) -> None:
        """Put other caches of the same lengths in the places of some, or all, of them.

        Can be called again if an interrupt came: until the last step the list is the old one.
        """
        for layer, cache in enumerate(caches):
            if self._group is not None and cache is not self._caches[layer]:
                self._group.replace(layer, cache)
        self._caches[:] = caches

    def room(self) -> int | None:
        """Drafts that the next block may hold so that it ends where rows get quantised."""
        if self._options is None or self._done:
            return None
        length = max(cache.length() for cache in self._caches)
        return max(0, self._options.start - length - 1)

    def _refuse_windows(self) -> None:
        from speculate.backends.rotating import RewindableRotatingKVCache

        for layer, cache in enumerate(self._caches):
            if isinstance(cache, RewindableRotatingKVCache):
                raise OptionError(
                    f"kv_bits cannot be used: layer {layer} has a sliding window, which mlx-lm "
                    "cannot quantise. Leave kv_bits out for this model, or max_kv_size."
                )


def prefill(
    setup: Setup, caches: list[Rollbackable], quantizer: Quantizer, prompt: Sequence[int]
) -> None:
    """Feed all tokens of `prompt` but the last, in mlx-lm's chunks, and record nothing."""
    setup.report(0, len(prompt))
    last = len(prompt) - 1
    for start in range(0, last, setup.prefill_step_size):
        stop = min(start + setup.prefill_step_size, last)
        ids = list(prompt[start:stop])
        chunk = mx.array(ids, dtype=mx.uint32)
        out = setup.model.forward(chunk[None], caches)
        quantizer.apply()
        setup.drafting.tell(Commit(chunk, out.hidden, ids=ids))
        mx.eval([cache.arrays() for cache in caches])
        setup.report(stop, len(prompt))
        mx.clear_cache()
    quantizer.check()


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
        self._group.rewind()
        self._group.stop()

    def restore(self) -> None:
        """Take back what was not kept."""
        self._group.rewind()

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
        mx.async_eval(block.results(), arrays_of(self._caches))
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
        mx.eval(mx.argmax(out.logits[0], axis=-1), arrays_of(self._caches))
        self._group.rewind()

    def fed(self) -> int:
        """Tokens that are text and were fed since this was made, owed ones included."""
        owed = self._group.to_replay()
        length = max(cache.length() for cache in self._caches)
        return length - self._start + (0 if owed is None else owed.shape[1])

    def evaluate(self, block: Block) -> None:
        """Wait for a block. The round's one synchronisation."""
        mx.eval(block.results(), arrays_of(self._caches))

    def feed_owed(self) -> None:
        """Feed what is text and was taken out of caches that could not stop inside a block."""
        owed = self._group.take_replay()
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
