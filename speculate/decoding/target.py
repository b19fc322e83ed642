"""The target's side of a run: prefill, forward, keep, replay and cache quantisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import mlx.core as mx

from speculate._mx import arrays_of, clamped_ids
from speculate.backends.group import CacheGroup, group_of, required_group
from speculate.decoding.block import Block
from speculate.decoding.cache_loan import PromptCacheLoan
from speculate.decoding.config import DecoderConfig, KVQuantization
from speculate.errors import OptionError
from speculate.protocols import Commit, Draft, Forward, Rollbackable


@final
class Quantizer:
    """Replaces caches by quantised ones once the sequence is long enough.

    Args:
        options: Quantisation options; `None` for none.
        caches: One model's caches. Entries are replaced in this list.

    Raises:
        OptionError: A layer has a sliding window, which cannot be quantised. mlx-lm would only
            fail in the middle of a generation.
    """

    def __init__(self, options: KVQuantization | None, caches: list[Rollbackable]) -> None:
        self._options = options
        self._caches = caches
        self._group = group_of(caches)
        self._done = options is None
        if options is not None:
            self._refuse_windows()

    def apply(self) -> None:
        """Quantise if the sequence is long enough. Call it after every committed forward."""
        if self._options is None or self._done:
            return
        from speculate.backends.kv import RewindableKVCache, quantize

        plain = {n: c for n, c in enumerate(self._caches) if isinstance(c, RewindableKVCache)}
        if any(cache.length() < self._options.start for cache in plain.values()):
            return
        size, bits = self._options.group_size, self._options.bits
        # Quantise all before replacing any, so that a failure changes nothing.
        packed = {layer: quantize(cache, size, bits) for layer, cache in plain.items()}
        self.replace([packed.get(n, cache) for n, cache in enumerate(self._caches)])
        self._done = True

    def check(self) -> None:
        """Refuse a group size that does not fit, before any token is emitted.

        Raises:
            OptionError: The width of a row is not a multiple of the group size.
        """
        if self._options is None:
            return
        from speculate.backends.kv import RewindableKVCache

        for layer, cache in enumerate(self._caches):
            if isinstance(cache, RewindableKVCache) and cache.keys is not None:
                width, size = cache.keys.shape[-1], self._options.group_size
                if width % size:
                    raise OptionError(
                        f"kv_group_size={size} does not divide the {width} values of a row in "
                        f"layer {layer}: use a smaller group"
                    )

    def replace(self, caches: Sequence[Rollbackable]) -> None:
        """Replace caches by others of the same lengths.

        May be called again after an interrupt: the list changes in the last step only.
        """
        for layer, cache in enumerate(caches):
            if self._group is not None and cache is not self._caches[layer]:
                self._group.replace(layer, cache)
        self._caches[:] = caches

    def room_for_drafts(self) -> int | None:
        """Return the most drafts of the next block, which must end where quantisation begins."""
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
                    "cannot quantise. Omit kv_bits for this model, or max_kv_size."
                )


def prefill(
    config: DecoderConfig, caches: list[Rollbackable], quantizer: Quantizer, prompt: Sequence[int]
) -> None:
    """Feed all tokens of `prompt` but the last, in mlx-lm's chunks, without recording."""
    config.report(0, len(prompt))
    last = len(prompt) - 1
    for start in range(0, last, config.prefill_step_size):
        stop = min(start + config.prefill_step_size, last)
        ids = list(prompt[start:stop])
        out = config.model.forward(mx.array([ids], dtype=mx.uint32), caches)
        quantizer.apply()
        config.proposers.commit(Commit.of(out, ids))
        mx.eval([cache.arrays() for cache in caches])
        config.report(stop, len(prompt))
        mx.clear_cache()
    quantizer.check()


@final
class TargetRunner:
    """Borrows the caller's caches and feeds the target.

    Tokens fed since the last `keep` can be rolled back.

    Args:
        config: The decoder's parts.
        loan: The caller's list of caches.
    """

    def __init__(self, config: DecoderConfig, loan: PromptCacheLoan) -> None:
        self._config = config
        self._loan = loan
        self._caches: list[Rollbackable] = []
        self._group = CacheGroup([])
        self._quantizer = Quantizer(None, [])
        self._start = 0
        self._undo: tuple[list[Rollbackable], list[Callable[[], None]]] | None = None

    # The caller's list.

    def borrow(self) -> None:
        """Use the caches of the loan, after its `take`."""
        self._caches = self._loan.caches
        self._start = self._loan.length()
        self._group = required_group(self._caches, "the model's")
        self._quantizer = Quantizer(self._config.kv, self._caches)

    def borrow_again(self, fed: int) -> None:
        """Continue after a pause, before which this run had fed `fed` tokens."""
        self.borrow()
        self._start -= fed
        self._group.start()

    # The prompt.

    def prefill(self, prompt: Sequence[int]) -> None:
        """Feed all of the prompt but its last token. Recording begins with `start`.

        Until `begun` is called, `give_up_prompt` can undo it.
        """
        before = list(self._caches)
        self._undo = (before, [cache.checkpoint() for cache in before])
        prefill(self._config, self._caches, self._quantizer, prompt)

    def start(self) -> None:
        """Start recording for rewinds."""
        self._group.start()

    def begun(self) -> None:
        """Commit the prompt."""
        self._undo = None

    def give_up_prompt(self) -> bool:
        """Restore the caches to their content before an uncommitted prompt.

        May be called again after an interrupt.

        Returns:
            Whether there was an uncommitted prompt.
        """
        if self._undo is None:
            return False
        before, go_back = self._undo
        self._group.stop()
        self._quantizer.replace(before)
        for restore in go_back:
            restore()
        return True

    # A round.

    def forward(self, last_token: mx.array, draft: Draft) -> Forward:
        """Feed the last token `(1,)` and a draft after it in one forward."""
        if self._config.own_sampler:
            # Perhaps not read yet: `Block.read` raises if it is not in the vocabulary.
            fed = clamped_ids(last_token, self._config.model.vocab_size)
        else:
            fed = last_token.astype(mx.uint32)
        if draft.tokens.shape[0]:
            fed = mx.concatenate([fed, draft.tokens])
        return self._config.model.forward(fed[None], self._caches)

    def submit(self, block: Block) -> None:
        """Start the device on a block without drafts; one with drafts is evaluated at once."""
        if not block.drafted:
            mx.async_eval(block.results(), arrays_of(self._caches))

    def evaluate(self, block: Block) -> None:
        """Wait for a block: the round's one synchronisation."""
        mx.eval(block.results(), arrays_of(self._caches))

    def keep(self, tokens: mx.array) -> None:
        """Commit the first tokens `(m,)` fed since the last `keep`, and roll the rest back."""
        self._group.keep(tokens.shape[0])
        self._config.sampler.commit(tokens)
        self.quantize()

    def quantize(self) -> None:
        """Quantise caches if the sequence is long enough."""
        self._quantizer.apply()

    def room_for_drafts(self) -> int | None:
        """Return the most drafts of the next block; `None` without a limit."""
        return self._quantizer.room_for_drafts()

    # Between rounds.

    def feed(self, ids: Sequence[int]) -> Commit:
        """Feed and commit tokens that were emitted before; their logits are not evaluated."""
        out = self._config.model.forward(mx.array([list(ids)], dtype=mx.uint32), self._caches)
        commit = Commit.of(out, ids)
        self.keep(commit.tokens)
        return commit

    def dry_run(self, ids: Sequence[int]) -> None:
        """Feed tokens, wait for the most likely next ones, and roll back: for timing."""
        out = self._config.model.forward(mx.array([list(ids)], dtype=mx.uint32), self._caches)
        mx.eval(mx.argmax(out.logits[0], axis=-1), arrays_of(self._caches))
        self._group.rewind()

    def fed(self) -> int:
        """Return the committed tokens fed in this run, including those to replay."""
        to_replay = self._group.to_replay()
        length = max(cache.length() for cache in self._caches)
        return length - self._start + (0 if to_replay is None else to_replay.shape[1])

    def replay(self) -> None:
        """Feed again the accepted tokens that a rollback of whole blocks removed."""
        to_replay = self._group.take_replay()
        if to_replay is not None:
            self._config.model.forward(to_replay, self._caches)
            self._group.keep(to_replay.shape[1])

    def restore(self) -> None:
        """Roll back what was not kept."""
        self._group.rewind()

    def stop(self) -> None:
        """Roll back what was not kept, and stop recording."""
        self._group.rewind()
        self._group.stop()
