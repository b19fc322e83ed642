"""Whether a draft model speaks the target's language."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from speculate.errors import VocabularyMismatchError
from speculate.protocols import SpeculativeModel

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
