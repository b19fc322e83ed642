"""Whether a draft model speaks the target's language."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, cast, final

import mlx.core as mx

from speculate._mx import arrays_of
from speculate.backends.group import CacheGroup, group_of
from speculate.errors import CannotRewindError, OptionError, SpeculateError, VocabularyMismatchError
from speculate.proposers._chain import Waiting
from speculate.protocols import (
    Choice,
    Choose,
    Commit,
    Draft,
    Fingerprinted,
    Rollbackable,
    SpeculativeModel,
)
from speculate.validation import refuse, validated_text

SHARED: Final = 0.99
"""Part of the smaller vocabulary whose tokens must have the same ids in the larger."""

PADDING: Final = 1024
"""Columns by which padding may make two vocabularies differ where no tokenizer is known."""


def check_vocabularies(target: SpeculativeModel, draft: SpeculativeModel) -> None:
    """Refuse a draft whose ids mean something else to the target.

    With both tokenizers known the ids of their tokens are compared. Otherwise only the
    number of columns can be: padding, up to 1024 columns and a quarter, is allowed.

    Raises:
        VocabularyMismatchError: The two do not match.
    """
    if target.vocabulary is not None and draft.vocabulary is not None:
        small, large = sorted((target.vocabulary, draft.vocabulary), key=len)
        same = sum(large.get(token) == id_ for token, id_ in small.items())
        if same < SHARED * len(small):
            raise VocabularyMismatchError(
                f"the draft model's tokenizer is another one: only {same} of {len(small)} tokens "
                "have the same id in the target's. Use a draft of the target's own family."
            )
        return
    few, many = sorted((target.vocab_size, draft.vocab_size))
    if many - few > min(PADDING, few // 4):
        raise VocabularyMismatchError(
            f"the draft model has {draft.vocab_size} tokens and the target {target.vocab_size}: "
            "more than padding explains. Use a draft with the target's tokenizer."
        )


def known_to(model: SpeculativeModel, ids: Iterable[int]) -> list[int]:
    """A text as a model can read it: its last id stands in for those that it does not have.

    So every token keeps its position, and one that is missing costs no more than itself. MLX does
    not check the ids that it looks up: one out of range reads foreign memory, or crashes.
    """
    last = model.vocab_size - 1
    return [min(id_, last) for id_ in ids]


@final
class DraftModel:
    """Drafts with another model: any that has an adapter, recurrent or windowed ones too.

    Where the draft model has fewer ids than the target, it drafts nothing behind a token that it
    lacks. Once the text goes on it drafts again, and reads its own last id in that token's place.
    Ids that only the draft model has are never drafted.

    Args:
        draft: The model. It must have the target's tokenizer.
        cache: Caches of `draft` to work on, from `draft.make_cache()` or adopted. The
            caller keeps them, and finds in them exactly the committed text after
            `settle()`, as the draft model reads it. By default the proposer makes its own.
        name: Tells it apart from other draft models of the same strategy.
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
            # Costs an import of mlx-lm, which whoever has caches has paid for already.
            from speculate.backends.adopt import refuse_shared

            refuse_shared(cache)
        validated_text("name", name)
        self._draft = draft
        self._name = name
        self._given = cache
        self._target: SpeculativeModel | None = None
        self._cache: list[Rollbackable] = []
        self._group = CacheGroup([])
        self._position = 0
        self._waiting = Waiting()
        self._in_flight = 0
        self._undo: list[Callable[[], None]] = []
        started_empty = cache is not None and not any(layer.length() for layer in cache)
        self._emptied = [layer.checkpoint() for layer in cache or ()] if started_empty else []
        # A model that cannot be rewound is refused here and not in the middle of a text.
        self._take(draft.make_cache() if cache is None else cache)

    @property
    def name(self) -> str:
        return self._name

    @property
    def fingerprint(self) -> str:
        """The draft model's; see `Fingerprinted`."""
        return self._draft.fingerprint if isinstance(self._draft, Fingerprinted) else ""

    def attach(self, target: SpeculativeModel, /) -> None:
        if target is not self._target:
            check_vocabularies(target, self._draft)
            self._target = target

    def begin(self, position: int, /) -> None:
        if self._given is None:
            self._take(self._draft.make_cache(position=position))
        else:
            self._undo_prefill()
            self._return_to(position)
            self._take(self._cache)
            self._undo = [cache.checkpoint() for cache in self._cache]
        self._position = position
        self._waiting, self._in_flight = Waiting(), 0

    def look_back(self, ids: Sequence[int], /) -> None:
        """Take in, with the next draft, what the caches lack of the text in front.

        Only where all of it is known: a text that begins late has other positions.
        """
        held = 0 if self._given is None else max(cache.length() for cache in self._cache)
        lacking = self._position - held
        missing = list(ids)[-lacking:] if lacking else []
        if not missing or len(missing) < lacking:
            return
        if self._given is None:
            self._take(self._draft.make_cache())
        self._waiting.add(known_to(self._draft, missing))

    def position(self) -> int:
        return self._position

    def behind(self) -> int:
        """See `CatchesUp`."""
        return self._waiting.behind()

    def commit(self, commit: Commit, /) -> None:
        known = 0
        if self._in_flight:
            accepted = commit.tokens.shape[0] - 1
            known = 1 + min(accepted, self._in_flight - 1) if commit.verdict else 0
            keep = len(self._waiting.ids) + known
            self._group.apply_keep(keep, self._group.plan_keep(keep))
            self._waiting, self._in_flight = Waiting(), 0
        if known < commit.tokens.shape[0]:
            self._waiting.add(known_to(self._draft, commit.ids[known:]))
        self._position += commit.tokens.shape[0]
        if self._waiting.is_due(commit.tokens.shape[0]):
            self._flush()

    def propose(self, newest: mx.array, limit: int, choose: Choose, /) -> Draft:
        self._undo = []
        # The target has no meaning for padding ids beyond its own.
        columns = self._shared_vocabulary()
        if self.behind():
            self._flush()
        # The token is read only where the target has ids that the draft model lacks. The decoder
        # made it from a number, so that reading it does not wait for the device.
        if self._target_vocabulary() > columns and cast(int, newest.item()) >= columns:
            return Draft(mx.zeros((0,), dtype=mx.uint32))
        block = self._waiting.in_front_of(newest)
        drafts: list[Choice] = []
        while len(drafts) < limit:
            out = self._draft.forward(block[None], self._cache)
            self._in_flight = len(drafts) + 1
            logits = out.logits[:, -1, :columns]
            drafts.append(choose(logits, len(drafts)))
            block = drafts[-1].token
            # The device begins while the next step is written down.
            mx.async_eval(block, arrays_of(self._cache) if len(drafts) == limit else [])
        tokens = mx.concatenate([choice.token for choice in drafts])
        return Draft(tokens, [choice.law for choice in drafts])

    def settle(self) -> None:
        self._undo = []
        self._group.rewind()
        self._in_flight = 0
        if self._given is not None:
            self._flush()
            owed = self._group.take_replay()
            if owed is not None:
                self._draft.forward(owed, self._cache)
        mx.eval(arrays_of(self._cache))

    def _take(self, cache: list[Rollbackable]) -> None:
        group = group_of(cache)
        if group is None:
            raise SpeculateError("the draft model's make_cache returned caches without a group")
        self._cache, self._group = cache, group
        self._group.stop()
        self._group.start()

    def _undo_prefill(self) -> None:
        """A prompt was taken in and then given up: the caller's caches are as before it."""
        for go_back in self._undo:
            go_back()
        self._undo = []

    def _return_to(self, position: int) -> None:
        """Take a text back that a caller's cache holds behind `position`, or refuse it."""
        held = max(cache.length() for cache in self._cache)
        if held <= position:
            return
        if position == 0 and self._emptied:
            for empty in self._emptied:
                empty()
            return
        if not all(cache.can_trim(held - position) for cache in self._cache):
            raise CannotRewindError(
                f"the draft model's cache holds {held} tokens of another text, the target's "
                f"{position}, and it cannot go back so far: pass a fresh one"
            )
        for cache in self._cache:
            cache.trim(held - position)

    def _flush(self) -> None:
        """Take in what is committed, without recording: it will not be taken back."""
        while self._waiting.ids:
            tokens = self._waiting.first()
            self._group.stop()
            try:
                self._draft.forward(tokens[None], self._cache)
            finally:
                self._group.start()
            self._waiting.ids = self._waiting.ids[tokens.shape[0] :]
            mx.async_eval(arrays_of(self._cache))

    def _shared_vocabulary(self) -> int:
        return min(self._draft.vocab_size, self._target_vocabulary())

    def _target_vocabulary(self) -> int:
        return (self._draft if self._target is None else self._target).vocab_size
