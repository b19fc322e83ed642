"""What a round does with the target: propose, forward, verify, keep; and prefill and replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import attrs
import mlx.core as mx

from speculate._mx import arrays_of
from speculate.backends.group import CacheGroup, group_of
from speculate.decoding.block import Block
from speculate.decoding.config import DecoderConfig, KVQuantization
from speculate.decoding.loan import Loan
from speculate.decoding.proposers import in_range
from speculate.errors import OptionError
from speculate.protocols import Choice, Choose, Commit, Draft, Plan, Rollbackable


@final
class Confidence:
    """Samples draft tokens with `choose`, and records their probabilities on the device.

    Args:
        choose: Samples a draft's token.
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
        chunk = mx.array(ids, dtype=mx.uint32)
        out = config.model.forward(chunk[None], caches)
        quantizer.apply()
        config.proposers.commit(Commit(chunk, out.hidden, ids=ids))
        mx.eval([cache.arrays() for cache in caches])
        config.report(stop, len(prompt))
        mx.clear_cache()
    quantizer.check()


@final
class TargetRunner:
    """Feeds the target. Tokens fed since the last `keep` can be rolled back.

    Args:
        config: The decoder's parts.
        loan: The caller's caches.
    """

    def __init__(self, config: DecoderConfig, loan: Loan) -> None:
        self._config = config
        self._caches = loan.caches
        self._start = loan.length()
        group = group_of(loan.caches)
        self._group = CacheGroup(loan.caches) if group is None else group
        self._quantizer = Quantizer(config.kv, loan.caches)
        self._undo: tuple[list[Rollbackable], list[Callable[[], None]]] | None = None
        # Built from a host list: `mx.zeros` would be evaluated lazily, in this thread's stream.
        self._nothing = Draft(mx.array([], dtype=mx.uint32))

    def prefill(self, prompt: Sequence[int]) -> None:
        """Feed all of the prompt but its last token.

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

    def stop(self) -> None:
        """Roll back what was not kept, and stop recording."""
        self._group.rewind()
        self._group.stop()

    def restore(self) -> None:
        """Roll back what was not kept."""
        self._group.rewind()

    def forward(self, last_token: mx.array, draft: Draft, plan: Plan) -> Block:
        """Feed the last token `(1,)` and a draft after it, and verify the draft."""
        last_token = last_token.astype(mx.uint32)
        fed = last_token[None]
        if draft.tokens.shape[0]:
            draft = in_range(draft, self._config.model.vocab_size)
            fed = mx.concatenate([last_token, draft.tokens])[None]
        out = self._config.model.forward(fed, self._caches)
        decision = self._config.sampler.verify(last_token, draft, out.logits[0])
        return Block(plan, draft, out, decision)

    def draft(self, last_token: mx.array, plan: Plan, depth: int) -> Block:
        """Feed the last token `(1,)` and up to `depth` drafts of the planned proposer."""
        if not depth:
            return self.submit(last_token, plan)
        choose = self._config.sampler.choose
        noting = Confidence(choose) if plan.confidence else None
        draft = self._config.proposers.draft(plan, last_token, depth, noting or choose)
        if not draft.tokens.shape[0]:
            return self.submit(last_token, plan)
        block = self.forward(last_token, draft, plan)
        return block if noting is None else attrs.evolve(block, confidence=noting.noted)

    def submit(self, last_token: mx.array, plan: Plan) -> Block:
        """Feed the last token `(1,)` alone, possibly unread, and start the device on it."""
        block = self.forward(last_token, self._nothing, plan)
        mx.async_eval(block.results(), arrays_of(self._caches))
        return block

    def feed(self, ids: Sequence[int]) -> Commit:
        """Feed and commit tokens that were emitted before; their logits are never computed."""
        tokens = mx.array(list(ids), dtype=mx.uint32)
        out = self._config.model.forward(tokens[None], self._caches)
        self._keep(tokens)
        return Commit(tokens, out.hidden, ids=ids)

    def dry_run(self, ids: Sequence[int]) -> None:
        """Feed tokens, wait for the most likely next ones, and roll back."""
        out = self._config.model.forward(mx.array([list(ids)], dtype=mx.uint32), self._caches)
        mx.eval(mx.argmax(out.logits[0], axis=-1), arrays_of(self._caches))
        self._group.rewind()

    def fed(self) -> int:
        """Return the committed tokens fed since creation, including those to replay."""
        to_replay = self._group.to_replay()
        length = max(cache.length() for cache in self._caches)
        return length - self._start + (0 if to_replay is None else to_replay.shape[1])

    def evaluate(self, block: Block) -> None:
        """Wait for a block: the round's one synchronisation."""
        mx.eval(block.results(), arrays_of(self._caches))

    def replay(self) -> None:
        """Feed committed tokens again that caches had to drop with a partly rejected block."""
        to_replay = self._group.take_replay()
        if to_replay is not None:
            self._config.model.forward(to_replay, self._caches)
            self._group.apply_keep(to_replay.shape[1], self._group.plan_keep(to_replay.shape[1]))

    def keep(self, block: Block, ids: Sequence[int], bonus: int | None) -> Commit:
        """Commit a block's first tokens, `ids`, and roll the rest back.

        Args:
            block: The block.
            ids: Its first token and the accepted drafts.
            bonus: The bonus token, if it was emitted.
        """
        commit = block.commit(ids, bonus)
        self._keep(commit.tokens)
        return commit

    def _keep(self, tokens: mx.array) -> None:
        count = tokens.shape[0]
        self._group.apply_keep(count, self._group.plan_keep(count))
        self._config.sampler.keep(tokens)

    def quantize(self) -> None:
        """Quantise caches if the sequence is long enough."""
        self._quantizer.apply()

    def room_for_drafts(self) -> int | None:
        """Return the most drafts of the next block; `None` without a limit."""
        return self._quantizer.room_for_drafts()
