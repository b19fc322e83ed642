"""A tiny tokenizer for the tiny models, and folders as mlx-lm writes them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Final, cast

import mlx.core as mx
from mlx import nn
from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper
from mlx_lm.utils import save_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.support import tiny

EOS: Final = "<eos>"
EOS_ID: Final = tiny.VOCAB - 1
LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
"""Ids 0 to 25. Then come 26 capitals, pairs, a space, a euro sign in three bytes, and the end."""

DENSE: Final[dict[str, object]] = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": tiny.VOCAB,
    "tie_word_embeddings": True,
    "eos_token_id": [61, EOS_ID],
}
"""`config.json` of `tiny.dense()`."""


@cache
def vocabulary() -> dict[str, int]:
    """Strings of the tiny vocabulary, as byte-level tokens, and their ids."""
    euro = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str("€")[0][0]
    words = [*LETTERS, *LETTERS.upper(), "st", "op", "xyz", "END", "\u0120", "\u010a", *euro, "!"]
    words += ["?", EOS]
    assert len(words) == tiny.VOCAB
    return {word: id_ for id_, word in enumerate(words)}


def fast_tokenizer(shift: int = 0) -> PreTrainedTokenizerFast:
    """The tokenizer in transformers' form; with a shift its ids mean something else."""
    known = vocabulary()
    ids = {word: (id_ + shift) % len(known) for word, id_ in known.items()}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, eos_token=EOS, clean_up_tokenization_spaces=False
    )


def wrapper(*eos: int) -> TokenizerWrapper:
    """The tokenizer in mlx-lm's form, as it is after loading; nothing ends a text by default."""
    found = TokenizerWrapper(fast_tokenizer(), BPEStreamingDetokenizer)
    found.eos_token_ids = eos
    return found


def decoded(ids: list[int]) -> str:
    """The text of whole ids, byte for byte."""
    return cast(str, fast_tokenizer().decode(ids))


def write_folder(
    folder: Path,
    module: nn.Module,
    config: dict[str, object],
    *,
    shift: int = 0,
    extra: dict[str, mx.array] | None = None,
    chat_template: str | None = None,
) -> Path:
    """Write a model with its tokenizer as mlx-lm does.

    Args:
        folder: Where to.
        module: The model.
        config: What `config.json` says.
        shift: See `fast_tokenizer`.
        extra: Tensors to add, in a file of their own: a head's.
        chat_template: The tokenizer's.
    """
    save_model(folder, module)
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = fast_tokenizer(shift)
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(folder)
    if extra:
        mx.save_safetensors(str(folder / "mtp.safetensors"), extra)
    return folder
