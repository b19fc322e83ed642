"""A byte-level pair vocabulary of 1024 entries, and the corpus as token ids."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tools.demo_models import corpus
from tools.demo_models.paths import work

VOCAB_SIZE = 1024
END_OF_TEXT = "<|endoftext|>"
EOS_ID = 0


def train() -> Tokenizer:
    """Learns the vocabulary from the training side of the corpus."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = corpus.code(held_out=False) + corpus.prose(held_out=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def load() -> Tokenizer:
    """Returns the trained tokenizer, training it the first time."""
    path = work("tokenizer.json")
    if not path.exists():
        train().save(str(path))
    return Tokenizer.from_file(str(path))


def save(folder: Path) -> None:
    """Writes the two files by which ``transformers`` recognises a fast tokenizer."""
    load().save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
    }
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def token_ids(*, held_out: bool) -> np.ndarray:
    """Returns one side of the corpus as one long row, an end-of-text after each file."""
    path = work(f"tokens_{'held_out' if held_out else 'train'}.npy")
    if not path.exists():
        texts = corpus.code(held_out=held_out) + corpus.prose(held_out=held_out)
        encoded = load().encode_batch(texts, add_special_tokens=False)
        rows = [np.asarray([*e.ids, EOS_ID], dtype=np.int32) for e in encoded]
        np.random.default_rng(0).shuffle(rows)
        np.save(path, np.concatenate(rows))
    ids: np.ndarray = np.load(path)
    return ids
