"""mlx-lm's form of a prompt cache for two models: the target's layers, then the draft's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

import attrs
import mlx.core as mx

from speculate.backends.adoption import refuse_shared
from speculate.backends.joining import group_of
from speculate.decoding.inputs import check_list
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
    check_list(prompt_cache)
    if prompt_cache is None:
        return Halves()
    of_target = len(target.make_cache())
    of_draft = 0 if draft is None else len(draft.make_cache())
    if len(prompt_cache) == of_target:
        return Halves(target=prompt_cache)
    if of_draft and len(prompt_cache) == of_target + of_draft:
        refuse_shared(prompt_cache)
        return Halves(prompt_cache, prompt_cache[:of_target], prompt_cache[of_target:])
    wanted = f"{of_target} for the target"
    wanted += f", or these and {of_draft} for the draft model" if of_draft else ""
    raise OptionError(f"prompt_cache has {len(prompt_cache)} caches, it needs {wanted}")


@contextmanager
def lent(
    draft: SpeculativeModel, halves: Halves, stream: mx.Stream | mx.ThreadLocalStream
) -> Iterator[list[Rollbackable] | None]:
    """The draft model's part, on loan while the body runs; then the whole list is refilled.

    Args:
        draft: The draft model.
        halves: The caller's list. Without a part for the draft model nothing is done.
        stream: Where to compute what is left to do at the end.

    Yields:
        What the draft model is to work on; `None` for caches of its own.
    """
    if halves.both is None or halves.target is None or halves.draft is None:
        yield None
        return
    loan, both = Loan(draft, halves.draft), halves.both

    def give_back() -> None:
        with mx.stream(stream):
            group = group_of(loan.caches)
            if group is not None:
                group.restore()
                group.stop()
            loan.give_back()
        both[:] = [*(halves.target or ()), *loan.list]

    try:
        try:
            loan.take()
            both[:] = [OnLoan(layer) for layer in range(len(both))]
            yield loan.caches
        finally:
            give_back()
    finally:
        # Does what is left to do, if an interrupt came in the middle of the first.
        give_back()
