"""Checks of what callers pass in, before anything is done with it."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from speculate.decoding.block import to_ints
from speculate.errors import OptionError, PromptError
from speculate.protocols import Strategy


def check_names(strategy: Strategy) -> None:
    """Refuse proposers that the counters could not tell apart.

    Raises:
        OptionError: Two share a name.
    """
    names = [proposer.name for proposer in strategy.proposers]
    if len(set(names)) < len(names):
        raise OptionError(f"two proposers of one strategy share a name: {', '.join(names)}")


def checked_prompt(prompt: Sequence[int] | mx.array, vocab_size: int) -> list[int]:
    """The prompt on the host, if a model of that vocabulary can take it.

    Raises:
        PromptError: It cannot.
    """
    if isinstance(prompt, mx.array) and (
        prompt.ndim != 1 or not mx.issubdtype(prompt.dtype, mx.integer)
    ):
        raise PromptError(
            f"a prompt is one row of ids, (T,) integers, got {prompt.shape} {prompt.dtype}"
        )
    ids = to_ints(prompt) if isinstance(prompt, mx.array) else [int(id_) for id_ in prompt]
    if not ids:
        raise PromptError("the prompt is empty: give at least one token id")
    wrong = next((id_ for id_ in ids if not 0 <= id_ < vocab_size), None)
    if wrong is not None:
        raise PromptError(
            f"prompt id {wrong} is not among the model's {vocab_size}: the tokenizer is "
            "probably another model's"
        )
    return ids


def check_list(prompt_cache: object) -> None:
    """Refuse a prompt cache that could not be refilled.

    Raises:
        OptionError: It is no list.
    """
    if prompt_cache is not None and not isinstance(prompt_cache, list):
        kind = type(prompt_cache).__name__
        raise OptionError(f"the prompt cache must be a list, which is refilled; got a {kind}")
