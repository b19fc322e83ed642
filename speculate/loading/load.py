"""Models from disk or a hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import mlx.core as mx

from speculate.loading.adapt import adapt
from speculate.loading.demo import demo_folder
from speculate.loading.folder import check_folder, explained, locate
from speculate.loading.head import head_for
from speculate.loading.unpack import unpack_model
from speculate.protocols import SpeculativeModel, StockModel
from speculate.validation import refuse, validated_flag, validated_mapping, validated_text

if TYPE_CHECKING:
    from mlx.nn.layers.base import Module
    from mlx_lm.tokenizer_utils import TokenizerWrapper


def load(
    path_or_repo: str | Path | None = None,
    *,
    head: str | Path | Literal[False] | None = None,
    dequantize: bool = False,
    lazy: bool = False,
    tokenizer_config: Mapping[str, object] | None = None,
    model_config: Mapping[str, object] | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> tuple[SpeculativeModel, TokenizerWrapper]:
    """Load a model and its tokenizer, and attach its multi-token-prediction head.

    Args:
        path_or_repo: A folder or a hub repository, in any form that mlx-lm loads. `None`
            is the bundled demo model.
        head: Where the head is. By default the folder's own, if it holds one, and none with a
            `SpeculateWarning` if only its index speaks of one; `False` leaves that alone.
        dequantize: Turn quantised weights into float32: larger, and on a CPU faster. The
            bundled models always are.
        lazy: Leave reading the weights for when they are needed. An adapter of another package
            needs them at once, to be compared with the model.
        tokenizer_config: Options for the tokenizer.
        model_config: Entries that replace those of `config.json`.
        revision: A branch, a tag or a commit of the repository.
        trust_remote_code: Let the checkpoint bring Python code of its own.

    Returns:
        The model, which knows the tokenizer's end-of-text ids and its vocabulary, and the
        tokenizer.

    Raises:
        OptionError: An option cannot be used.
        CheckpointError: There is no such model, or something in it is missing or broken.
        UnsupportedModelError: No adapter drives a model of this type, or the one that another
            package brings gives other logits than the model.
        HeadNotFoundError: `head` is given and holds none.
        HeadMismatchError: The head does not fit the model.
    """
    validated_flag("dequantize", dequantize)
    validated_flag("lazy", lazy)
    validated_flag("trust_remote_code", trust_remote_code)
    validated_mapping("tokenizer_config", tokenizer_config)
    validated_mapping("model_config", model_config)
    _check_sources(revision, head)
    folder = demo_folder("hybrid") if path_or_repo is None else locate(path_or_repo, revision)
    check_folder(folder, model_config)
    if isinstance(head, str | Path):
        head = locate(head, head_only=True)  # A mistake here shows before anything is read.
    unpacked = dequantize or path_or_repo is None
    stock, config = _load_stock(folder, unpacked, lazy, model_config, trust_remote_code)
    tokenizer = _load_tokenizer(folder, tokenizer_config, config)
    model = adapt(
        stock,
        head=head_for(stock, folder, head, dequantize=unpacked),
        eos_token_ids=tokenizer.eos_token_ids,
        vocabulary=cast("dict[str, int]", tokenizer.get_vocab()),
    )
    return model, tokenizer


def load_demo(name: str = "hybrid") -> tuple[SpeculativeModel, TokenizerWrapper]:
    """Load one of the bundled models.

    Args:
        name: "hybrid": a Qwen3.5 with a head. "draft": a smaller dense model for it.
            "windowed": a gpt-oss whose window a short prompt fills.

    Raises:
        OptionError: There is none of that name.
        CheckpointError: This installation came without it.
    """
    return load(demo_folder(name), dequantize=True)


def _check_sources(revision: object, head: object) -> None:
    if revision is not None:
        validated_text("revision", revision)
    if head is not False and not isinstance(head, str | Path | None):
        refuse("head", "a path, a hub repository, None or False", head)


def _load_stock(
    folder: Path,
    dequantize: bool,
    lazy: bool,
    overrides: Mapping[str, object] | None,
    trust_remote_code: bool,
) -> tuple[StockModel, dict[str, object]]:
    from speculate.checkpoints import load_trunk
    from speculate.models.registry import adapter_for

    with explained(folder, "mlx-lm cannot load the model"):
        stock, config = load_trunk(
            folder,
            lazy=True,
            model_config=None if overrides is None else dict(overrides),
            trust_remote_code=trust_remote_code,
        )
        # Before gigabytes are read: is there any use for them?
        adapter_for(stock)
        if dequantize:
            unpack_model(stock)
        if not lazy:
            mx.eval(cast("Module", stock).parameters())
    return stock, config


def _load_tokenizer(
    folder: Path, options: Mapping[str, object] | None, config: Mapping[str, object]
) -> TokenizerWrapper:
    from mlx_lm.utils import load_tokenizer

    with explained(folder, "its tokenizer cannot be loaded"):
        tokenizer: TokenizerWrapper = load_tokenizer(
            folder, None if options is None else dict(options), config.get("eos_token_id")
        )
    return tokenizer
