"""What `speculate inspect` finds out: from headers, configs, and a head's norms."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, final

import attrs

from speculate.checkpoints.folder import read_json, scan_folder, section, setting
from speculate.checkpoints.head import HeadSummary, find_head, summarize_head
from speculate.checkpoints.names import strip_prefix
from speculate.cli.layers import Architecture, architecture
from speculate.errors import HeadNotFoundError

SHOWN_DIGITS: Final = 12


@final
@attrs.frozen
class Tokenizer:
    """What a draft model's tokenizer is compared with.

    Attributes:
        tokens: How many ids have a token.
        fingerprint: Of all tokens and their ids; equal ones mean equal vocabularies.
    """

    tokens: int
    fingerprint: str


@final
@attrs.frozen
class Report:
    """A checkpoint.

    Attributes:
        path: As found.
        model_type: Of its config.
        architecture: What that makes; `None` for a head on its own.
        quantization: Of the trunk, as the config says; `None` where it is not quantised.
        dtypes: Tensors of the trunk by their type on disk.
        prefix: What stands before the head's names.
        head: The head; `None` where there is none.
        no_head: Why there is none.
        vocabulary_size: What a draft model must match.
        tokenizer: Likewise.
    """

    path: str
    model_type: str | None
    architecture: Architecture | None
    quantization: Mapping[str, object] | None
    dtypes: Mapping[str, int]
    prefix: str | None
    head: HeadSummary | None
    no_head: str | None
    vocabulary_size: int | None
    tokenizer: Tokenizer | None


def inspect(path: Path, head_path: Path | Literal[False] | None = None) -> Report:
    """Look at a checkpoint. Loads no weights.

    Args:
        path: A folder, or a safetensors file.
        head_path: Where to look for the head instead; `False` looks for none.

    Raises:
        CheckpointError: A file is damaged or missing.
    """
    found = scan_folder(path)
    config, name = found.config, found.config.get("model_type")
    trunk = [t for t in found.tensors.values() if strip_prefix(t.name) is None]
    made, prefix, head, why = None, None, None, None
    if head_path is False:
        why = "It was not looked for"
    else:
        try:
            files = find_head(head_path or path)
            prefix, head = files.prefix, summarize_head(files)
        except HeadNotFoundError as error:
            why = str(error)
    if prefix == "":
        trunk = [t for t in trunk if t not in files.tensors.values()]
    if path.is_dir() and config and not str(name).endswith("_mtp"):
        made = architecture(config, path)
    size = setting(config, "vocab_size")
    known = made.vocabulary_size if made else None
    return Report(
        path=str(path),
        model_type=name if isinstance(name, str) else None,
        architecture=made,
        quantization=_quantization(config),
        dtypes=dict(Counter(tensor.dtype for tensor in trunk).most_common()),
        prefix=prefix,
        head=head,
        no_head=why,
        vocabulary_size=known or (size if isinstance(size, int) else None),
        tokenizer=_tokenizer(found.folder / "tokenizer.json") if path.is_dir() else None,
    )


def _quantization(config: Mapping[str, object]) -> Mapping[str, object] | None:
    for level in (config, section(config, "text_config")):
        for key in ("quantization", "quantization_config"):
            if found := section(level, key):
                return found
    return None


def _tokenizer(path: Path) -> Tokenizer | None:
    if not path.exists():
        return None
    described = read_json(path)
    vocabulary = section(described, "model").get("vocab")
    if isinstance(vocabulary, dict):
        ids = dict(vocabulary)
    elif isinstance(vocabulary, list):
        pairs = [entry for entry in vocabulary if isinstance(entry, list) and entry]
        ids = {str(entry[0]): place for place, entry in enumerate(pairs)}
    else:
        return None
    added = described.get("added_tokens")
    for token in added if isinstance(added, list) else []:
        if isinstance(token, dict):
            ids[str(token.get("content"))] = token.get("id")
    text = json.dumps(sorted(ids.items()), ensure_ascii=True)
    return Tokenizer(len(ids), hashlib.sha256(text.encode()).hexdigest()[:SHOWN_DIGITS])
