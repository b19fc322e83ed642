"""mlx-lm's form of a prompt cache for two models: the target's layers, then the draft's."""

from __future__ import annotations

from types import TracebackType
from typing import Self, final

import attrs
import mlx.core as mx

from speculate.backends.adoption import refuse_shared
from speculate.backends.joining import group_of
from speculate.decoding.loan import Loan, OnLoan
from speculate.errors import OptionError
from speculate.protocols import Rollbackable, SpeculativeModel


@final
@attrs.frozen
class Halves:
    """A caller's list, split.

    Attributes:
        both: The caller's list, where it holds a part for the draft model.
        target: The target's part. Where there is no other, the caller's list itself.
        draft: The draft model's part.
    """

    both: list[object] | None = None
    target: list[object] | None = None
    draft: list[object] | None = None


def split(
    prompt_cache: list[object] | None,
    target: SpeculativeModel,
    draft: SpeculativeModel | None = None,
) -> Halves:
    """Split a list by the number of caches that the models make.

    Raises:
        OptionError: It has the length of neither part nor both, or one cache twice.
    """
    if prompt_cache is None:
        return Halves()
    refuse_shared(prompt_cache)
    of_target = len(target.make_cache())
    of_draft = 0 if draft is None else len(draft.make_cache())
    if len(prompt_cache) == of_target:
        return Halves(target=prompt_cache)
    if of_draft and len(prompt_cache) == of_target + of_draft:
        return Halves(prompt_cache, prompt_cache[:of_target], prompt_cache[of_target:])
    wanted = f"{of_target} for the target"
    wanted += f", or these and {of_draft} for the draft model" if of_draft else ""
    raise OptionError(f"prompt_cache has {len(prompt_cache)} caches, it needs {wanted}")


@final
class DraftHalf:
    """The draft model's part, on loan while the body runs; then the whole list is refilled.

    Args:
        draft: The draft model.
        halves: The caller's list. Without a part for the draft model nothing is done.
        stream: Where to compute what is left to do at the end.

    Attributes:
        target: The target's part.
        caches: What the draft model is to work on; `None` for caches of its own.
    """

    def __init__(
        self,
        draft: SpeculativeModel,
        halves: Halves,
        stream: mx.Stream | mx.ThreadLocalStream,
    ) -> None:
        self._halves = halves
        self.target: list[object] | None = halves.target
        self._stream = stream
        self._loan = None if halves.draft is None else Loan(draft, halves.draft)
        self.caches: list[Rollbackable] | None = self._loan and self._loan.caches

    def __enter__(self) -> Self:
        if self._halves.both is not None:
            self._halves.both[:] = [OnLoan(layer) for layer in range(len(self._halves.both))]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._loan is None:
            return
        with mx.stream(self._stream):
            group = group_of(self._loan.caches)
            if group is not None:
                group.stop()
            self._loan.give_back()
        if self._halves.both is not None:
            self._halves.both[:] = [*(self._halves.target or ()), *self._loan.list]
