"""Checks of what callers pass in, before anything is done with it."""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence

import mlx.core as mx

from speculate.decoding.block import to_ints
from speculate.errors import OptionError, PromptError
from speculate.protocols import Strategy


def check_model(model: object) -> None:
    """Refuse a model that nothing drives.

    Raises:
        OptionError: It is one of mlx-lm's own.
    """
    # These are modules of MLX, which are dictionaries of their parts.
    if isinstance(model, dict):
        raise OptionError(
            f"{type(model).__module__}.{type(model).__name__} is no model that can take tokens "
            "back: wrap a model of mlx-lm, as speculate.adapt(model)"
        )


def check_strategy(strategy: object) -> None:
    """Refuse what is no strategy, and proposers that the counters could not tell apart.

    Raises:
        OptionError: It is none, or two of its proposers share a name.
    """
    if not isinstance(strategy, Strategy):
        raise OptionError(
            f"{type(strategy).__name__} is no strategy: give one, as Fixed(proposer, depth=3)"
        )
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
    ids = checked_ids(to_ints(prompt) if isinstance(prompt, mx.array) else prompt, vocab_size)
    if not ids:
        raise PromptError("the prompt is empty: give at least one token id")
    return ids


def checked_ids(ids: Sequence[int], vocab_size: int) -> list[int]:
    """Ids on the host, all of them the model's: MLX does not check what it looks up.

    Raises:
        PromptError: One is no integer, or out of range.
    """
    try:
        plain = [operator.index(id_) for id_ in ids]
    except TypeError as error:
        raise PromptError(f"ids are integers, and {error}: encode text first") from error
    wrong = next((id_ for id_ in plain if not 0 <= id_ < vocab_size), None)
    if wrong is not None:
        raise PromptError(
            f"prompt id {wrong} is not among the model's {vocab_size}: the tokenizer is "
            "probably another model's"
        )
    return plain


def checked_stops(stop_tokens: Collection[int]) -> frozenset[int]:
    """Stop tokens as plain integers, also where they come in an array.

    Raises:
        OptionError: They are not ids.
    """
    try:
        return frozenset(int(token) for token in stop_tokens)
    except (TypeError, ValueError) as error:
        raise OptionError(f"stop_tokens must be token ids, got {stop_tokens!r}") from error


def check_list(prompt_cache: object) -> None:
    """Refuse a prompt cache that could not be refilled.

    Raises:
        OptionError: It is no list.
    """
    if prompt_cache is not None and not isinstance(prompt_cache, list):
        kind = type(prompt_cache).__name__
        raise OptionError(f"the prompt cache must be a list, which is refilled; got a {kind}")
