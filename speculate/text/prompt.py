"""From what a caller has to token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import mlx.core as mx

from speculate.errors import OptionError, PromptError
from speculate.validation import plain_ids, validated_flag

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

Prompt = str | Sequence[int] | mx.array
"""Text, or token ids `(T,)`."""


def encode(
    tokenizer: TokenizerWrapper, prompt: Prompt, *, chat_template: bool = False
) -> list[int]:
    """Token ids of a prompt, as mlx-lm makes them.

    Args:
        tokenizer: The model's.
        prompt: Text or ids. Text gets the tokenizer's special tokens, unless it begins
            with the first of them already.
        chat_template: Put text into the tokenizer's chat template, as a user's message.

    Raises:
        OptionError: There is no chat template, or the prompt is not text.
        PromptError: They are no ids, or come as an array of another shape.
    """
    validated_flag("chat_template", chat_template)
    if isinstance(prompt, str):
        return _encode_chat(tokenizer, prompt) if chat_template else _encode_text(tokenizer, prompt)
    if chat_template:
        raise OptionError("chat_template needs a prompt of text; ids are past that")
    if not isinstance(prompt, mx.array):
        try:
            return plain_ids(prompt)
        except TypeError as error:
            raise PromptError(f"a prompt is text or token ids, and {error}") from error
    if prompt.ndim != 1:
        raise PromptError(f"a prompt of ids has the shape (T,), got {prompt.shape}")
    return cast("list[int]", prompt.tolist())


def _encode_text(tokenizer: TokenizerWrapper, text: str) -> list[int]:
    first = cast("str | None", tokenizer.bos_token)
    special = first is None or not text.startswith(first)
    return cast("list[int]", tokenizer.encode(text, add_special_tokens=special))


def _encode_chat(tokenizer: TokenizerWrapper, text: str) -> list[int]:
    if not tokenizer.has_chat_template:
        raise OptionError("the tokenizer has no chat template: leave chat_template out")
    message = {"role": "user", "content": text}
    ids = tokenizer.apply_chat_template([message], add_generation_prompt=True)
    return cast("list[int]", ids)
