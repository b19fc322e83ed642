"""A smaller model that drafts for the target, and the check that both share a vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, cast, final

import mlx.core as mx

from speculate._mx import arrays_of
from speculate.backends.group import CacheGroup, required_group
from speculate.errors import CannotRewindError, OptionError, VocabularyMismatchError
from speculate.proposers._chain import Backlog, draft_chain, fingerprint_of
from speculate.protocols import Commit, Draft, DraftSampler, Rollbackable, SpeculativeModel
from speculate.validation import refuse, validated_text

FLUSH_CHUNK: Final = 2048
"""Most tokens of the backlog to feed with one forward."""


def check_vocabularies(target: SpeculativeModel, draft: SpeculativeModel) -> None:
    """Compare the ids of both tokenizers' tokens or, if one is unknown, the number of columns.

    99% of the smaller vocabulary's tokens must have the same ids in the larger one. Columns may
    differ by padding: by up to 1024, and up to a quarter.

    Raises:
        VocabularyMismatchError: The ids of the draft model mean something else to the target.
    """
    if target.vocabulary is not None and draft.vocabulary is not None:
        small, large = sorted((target.vocabulary, draft.vocabulary), key=len)
        same = sum(large.get(token) == id_ for token, id_ in small.items())
        if same < 0.99 * len(small):
            raise VocabularyMismatchError(
                f"the draft model has a different tokenizer: only {same} of {len(small)} tokens "
                "have the same id as in the target's. Use a draft model of the target's family."
            )
        return
    few, many = sorted((target.vocab_size, draft.vocab_size))
    if many - few > min(1024, few // 4):
        raise VocabularyMismatchError(
            f"the draft model has {draft.vocab_size} tokens and the target {target.vocab_size}: "
            "more than padding explains. Use a draft model with the target's tokenizer."
        )


def clamp_ids(model: SpeculativeModel, ids: Iterable[int]) -> list[int]:
    """Replace ids that a model does not have by its last id.

    Every token keeps its position, so a missing one affects no more than itself. MLX does not
    check the ids that it looks up: one out of range reads foreign memory, or crashes.
    """
    last = model.vocab_size - 1
    return [min(id_, last) for id_ in ids]


@final
class DraftModel:
    """Drafts with another model. Any model with an adapter will do, recurrent or windowed.

    If the draft model has fewer ids than the target, it drafts nothing after a token that it
    lacks. In later rounds it drafts again, and reads its own last id in place of that token. Ids
    that only the draft model has are never drafted.

    Args:
        draft: The draft model. It must have the target's tokenizer.
        cache: Caches of `draft` to work on, from `draft.make_cache()` or adopted. They stay the
            caller's; after `settle()` they hold exactly the committed sequence as the draft
            model reads it. By default the proposer makes its own.
        name: Distinguishes it from other draft models of the same strategy.

    Raises:
        OptionError: An option is invalid.
        SpeculateError: The draft model or its caches cannot be rewound.
    """

    def __init__(
        self,
        draft: SpeculativeModel,
        *,
        cache: list[Rollbackable] | None = None,
        name: str = "draft",
    ) -> None:
        if not isinstance(draft, SpeculativeModel):
            raise OptionError(
                f"draft: {type(draft).__module__}.{type(draft).__name__} cannot draft: wrap a "
                "model of mlx-lm, as DraftModel(speculate.adapt(model))"
            )
        if not isinstance(cache, list | None):
            refuse("cache", "a list, from draft.make_cache(), or None", cache)
        if cache is not None:
            # Imports mlx-lm, which a caller that has caches has imported already.
            from speculate.backends.adopt import refuse_shared

            refuse_shared(cache)
        validated_text("name", name)
        self._draft = draft
        self._name = name
        self._caller_cache = cache
        self._target: SpeculativeModel | None = None
        self._cache: list[Rollbackable] = []
        self._group = CacheGroup([])
        self._position = 0
        self._backlog = Backlog()
        self._in_flight = 0  # forwards of the draft in flight
        self._restore_prefill: list[Callable[[], None]] = []
        empty = not any(layer.length() for layer in cache or ())
        self._restore_empty = [layer.checkpoint() for layer in cache or () if empty]
        # A model that cannot be rewound is refused here and not in the middle of a sequence.
        self._use(draft.make_cache() if cache is None else cache)

    def __repr__(self) -> str:
        kind = type(self._draft).__name__
        return f"<DraftModel '{self._name}': {kind}, position {self._position}>"

    @property
    def name(self) -> str:
        return self._name

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self._draft)

    def attach(self, target: SpeculativeModel, /) -> None:
        if target is not self._target:
            check_vocabularies(target, self._draft)
            self._target = target

    def begin(self, position: int, history: Sequence[int] = (), /) -> None:
        if self._caller_cache is None:
            # Starts late unless all ids before are known: their rows have other positions.
            known = position <= len(history)
            self._use(self._draft.make_cache(position=0 if known else position))
            lacking = position
        else:
            # A prompt that was fed and then abandoned is no part of the caller's caches.
            for restore in self._restore_prefill:
                restore()
            self._restore_prefill = []
            self._trim_to(position)
            self._use(self._cache)
            self._restore_prefill = [cache.checkpoint() for cache in self._cache]
            lacking = position - self._held()
        self._position = position
        self._backlog, self._in_flight = Backlog(), 0
        if 0 < lacking <= len(history):
            self._backlog += clamp_ids(self._draft, list(history)[-lacking:])

    def position(self) -> int:
        return self._position

    def backlog(self) -> int:
        return self._backlog.own_batch()

    def commit(self, commit: Commit, /) -> None:
        known = 0
        if self._in_flight:
            accepted = commit.tokens.shape[0] - 1
            known = 1 + min(accepted, self._in_flight - 1) if commit.verdict else 0
            keep = len(self._backlog) + known
            # The backlog is emptied before its tokens are kept: an interrupt between the two
            # leaves the cache short of tokens, and never with a token fed twice.
            self._backlog, self._in_flight = Backlog(), 0
            self._group.keep(keep)
        if known < commit.tokens.shape[0]:
            self._backlog += clamp_ids(self._draft, commit.ids[known:])
        self._position += commit.tokens.shape[0]
        if self._backlog.should_flush(commit.tokens.shape[0]):
            self._flush()

    def propose(self, last_token: mx.array, limit: int, choose: DraftSampler, /) -> Draft:
        self._restore_prefill = []
        target = self._draft if self._target is None else self._target
        # Padding ids beyond the target's own mean nothing to the target.
        columns = min(self._draft.vocab_size, target.vocab_size)
        if self.backlog():
            self._flush()
        # The token is read only if the target has ids that the draft model lacks. The decoder
        # made the array from a number, so that reading it does not wait for the device.
        if target.vocab_size > columns and cast(int, last_token.item()) >= columns:
            return Draft(mx.zeros((0,), dtype=mx.uint32))

        def step(tokens: mx.array, index: int) -> mx.array:
            out = self._draft.forward(tokens[None], self._cache)
            self._in_flight = index + 1
            return out.logits[:, -1, :columns]

        return draft_chain(self._backlog.before(last_token), limit, choose, step, self._cache)

    def settle(self) -> None:
        self._restore_prefill = []
        self._group.rewind()
        self._in_flight = 0
        if self._caller_cache is not None:
            self._flush()
            replay = self._group.take_replay()
            if replay is not None:
                self._draft.forward(replay, self._cache)
        mx.eval(arrays_of(self._cache))

    def _use(self, cache: list[Rollbackable]) -> None:
        """Work on these caches from now on, and record what is fed to them."""
        self._group.stop()  # An open window keeps the caches alive.
        self._cache, self._group = cache, required_group(cache, "the draft model's")
        self._group.stop()
        self._group.start()

    def _trim_to(self, position: int) -> None:
        """Trim the caller's caches to `position` tokens, or raise if they cannot be trimmed."""
        held = self._held()
        if held <= position:
            return
        if position == 0 and self._restore_empty:
            for restore in self._restore_empty:
                restore()
            return
        if not all(cache.can_trim(held - position) for cache in self._cache):
            raise CannotRewindError(
                f"the draft model's cache holds {held} tokens of another sequence, the target's "
                f"holds {position}, and it cannot be trimmed that far: pass a fresh one"
            )
        for cache in self._cache:
            cache.trim(held - position)

    def _flush(self) -> None:
        """Feed the backlog without recording, because committed tokens are not rolled back."""
        while self._backlog:
            held, backlog = self._held(), self._backlog
            self._backlog = Backlog(backlog[FLUSH_CHUNK:])
            self._group.stop()
            try:
                first = Backlog(backlog[:FLUSH_CHUNK]).tokens()
                self._draft.forward(first[None], self._cache)
            except BaseException:
                if self._held() == held:
                    self._backlog = backlog
                raise
            finally:
                self._group.start()
            mx.async_eval(arrays_of(self._cache))

    def _held(self) -> int:
        """Tokens in the cache."""
        return max(cache.length() for cache in self._cache)
