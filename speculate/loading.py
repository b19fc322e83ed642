"""Load models and heads, and adapt models that are already in memory.

Functions import `mlx_lm` when called, which keeps `import speculate` fast.
"""

from __future__ import annotations

import atexit
import logging
import shutil
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, cast

import mlx.core as mx

from speculate.errors import (
    CheckpointError,
    HeadNotFoundError,
    OptionError,
    SpeculateWarning,
    StaleIndexError,
    UnsupportedModelError,
)
from speculate.protocols import MTPHead, Recurrence, SpeculativeModel, StockModel
from speculate.validation import (
    refuse,
    validated_choice,
    validated_flag,
    validated_ids,
    validated_mapping,
    validated_text,
)

if TYPE_CHECKING:
    from mlx.nn.layers.base import Module
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from speculate.checkpoints.norms import Convention
    from speculate.models.mtp import Feed

_logger = logging.getLogger(__name__)

DEMO_MODELS: Final = ("hybrid", "draft", "windowed")
"""A Qwen3.5 with a head, a smaller dense model for it, and a gpt-oss with a short window."""

DATA: Final = "data"
"""Folder of the package that holds the bundled models, and prompts in `prompts`."""


def demo_folder(name: str) -> Path:
    """Return the folder of a bundled model.

    Raises:
        OptionError: No bundled model has that name.
        CheckpointError: This installation lacks it.
    """
    if name not in DEMO_MODELS:
        available = ", ".join(DEMO_MODELS)
        raise OptionError(f"no bundled model is called {name!r}; available: {available}")
    folder = _data() / name
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: the bundled model is missing; reinstall mlx-speculate")
    return folder


def demo_prompt() -> str:
    """Return the beginning of a source file that no bundled model was trained on."""
    return demo_prompts("code")[0]


def demo_prompts(kind: str) -> list[str]:
    """Return the bundled prompts of a kind, "code" or "prose".

    Raises:
        CheckpointError: This installation lacks them.
    """
    folder = _data() / "prompts"
    found = [path.read_text(encoding="utf-8") for path in sorted(folder.glob(f"{kind}_*.txt"))]
    if not found:
        raise CheckpointError(f"{folder}: the bundled prompts are missing; reinstall mlx-speculate")
    return found


def _data() -> Path:
    found = files("speculate") / DATA
    return found if isinstance(found, Path) else _extracted()


@cache
def _extracted() -> Path:
    """Unpack the data of a package imported from an archive, until the process exits."""
    folder = Path(tempfile.mkdtemp(prefix="speculate-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _copy(files("speculate") / DATA, folder / DATA)
    return folder / DATA


def _copy(source: Traversable, target: Path) -> None:
    if source.is_dir():
        target.mkdir()
        for member in source.iterdir():
            _copy(member, target / member.name)
    elif source.is_file():
        target.write_bytes(source.read_bytes())


def load_mtp_head(
    path_or_repo: str | Path,
    model: SpeculativeModel | StockModel,
    *,
    norms: Convention | None = None,
    feed: Feed = "post_norm",
    dequantize: bool = False,
    revision: str | None = None,
) -> MTPHead:
    """Load a multi-token-prediction head; attach it with `adapt(..., head=head)`.

    Args:
        path_or_repo: A checkpoint that kept its head, a safetensors file with one, or a head alone.
        model: The trunk.
        norms: How the head's norms are stored; overrides detection from the files.
        feed: Which hidden states a chain feeds back. Published heads are trained on the default.
        dequantize: Convert quantised weights to float32.
        revision: A branch, tag or commit of the repository.

    Raises:
        OptionError: An option cannot be used.
        HeadNotFoundError: The files hold no head; `StaleIndexError` if an index lists one.
        CheckpointError: The head is damaged or stored in an unsupported format.
        HeadMismatchError: The head does not fit the model.
        UnsupportedModelError: No head is known for the model's family.
    """
    from speculate.checkpoints import find_head, read_head
    from speculate.checkpoints.folder import wrap_errors
    from speculate.checkpoints.hub import resolve_checkpoint
    from speculate.checkpoints.norms import CONVENTIONS
    from speculate.models.mtp import FEEDS, build_head

    validated_choice("norms", norms, (*CONVENTIONS, None))
    validated_choice("feed", feed, FEEDS)
    validated_flag("dequantize", dequantize)
    if revision is not None:
        validated_text("revision", revision)
    stock = stock_of(model)
    path = resolve_checkpoint(path_or_repo, revision, head_only=True)
    with wrap_errors(path, "the head cannot be read"):
        tensors = read_head(find_head(path), norms=norms)
        return build_head(stock, tensors.dequantized() if dequantize else tensors, feed=feed)


def adapt(
    stock_model: StockModel | SpeculativeModel,
    *,
    head: MTPHead | None = None,
    eos_token_ids: Iterable[int] = (),
    vocabulary: Mapping[str, int] | None = None,
    recurrence: Recurrence | None = None,
) -> SpeculativeModel:
    """Wrap an mlx-lm model without modifying it.

    Args:
        stock_model: The model. An adapted model is adapted again; options not given here keep
            their previous values.
        head: A multi-token-prediction head, from `load_mtp_head`.
        eos_token_ids: Ids that stop generation, such as a tokenizer's `eos_token_ids`.
        vocabulary: Token strings and their ids, such as a tokenizer's `get_vocab()`; compared
            with a draft model's vocabulary.
        recurrence: How Gated DeltaNet layers run and roll back a block, `"ops"` or `"kernel"`;
            `None` selects the cheaper one for the default device.

    Raises:
        UnsupportedModelError: No adapter is registered for this architecture, or one from
            another package computes different logits. Checking such an adapter runs a few
            tokens through both, which reads the weights.
        OptionError: An option cannot be used.
    """
    from speculate.models.adapter import StockAdapter
    from speculate.models.registry import adapter_for, check_against_stock, is_built_in

    stop = frozenset(validated_ids("eos_token_ids", eos_token_ids))
    validated_mapping("vocabulary", vocabulary)
    if isinstance(stock_model, StockAdapter):
        known = stock_model
        head = known.head if head is None else head
        stop = stop or known.eos_token_ids
        vocabulary = known.vocabulary if vocabulary is None else vocabulary
        recurrence = known.recurrence if recurrence is None else recurrence
    stock = stock_of(stock_model)
    factory = adapter_for(stock)
    # Factories of other packages need not know the keyword.
    chosen = {} if recurrence is None else {"recurrence": recurrence}
    adapter = factory(stock, head=head, eos_token_ids=stop, vocabulary=vocabulary, **chosen)
    if not is_built_in(factory, type(stock)):
        check_against_stock(adapter, stock)
    return adapter


def stock_of(model: SpeculativeModel | StockModel) -> StockModel:
    """Return the mlx-lm model that an adapter wraps, or `model` itself if it is one.

    Raises:
        UnsupportedModelError: It is neither.
    """
    from mlx.nn import Module

    from speculate.models.adapter import StockAdapter

    if isinstance(model, StockAdapter):
        return model.stock
    if isinstance(model, Module):
        return cast(StockModel, model)
    problem = "is neither an mlx-lm model nor an adapter with a known mlx-lm model"
    raise UnsupportedModelError(f"{type(model).__qualname__} {problem}")


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

    The model gets the tokenizer's end-of-text ids and vocabulary.

    Args:
        path_or_repo: A folder or hub repository; `None` is the bundled demo model.
        head: A path or repository of the head. By default the folder's own head, if
            any; a `SpeculateWarning` if only its index lists one. `False` loads no head.
        dequantize: Convert quantised weights to float32; always done for the bundled models.
        lazy: Read weights on first use. Checking another package's adapter reads them at once.
        tokenizer_config: Options for the tokenizer.
        model_config: Entries that override those of `config.json`.
        revision: A branch, tag or commit of the repository.
        trust_remote_code: Allow the checkpoint to run its own Python code.

    Raises:
        OptionError: An option cannot be used.
        CheckpointError: The model does not exist, or part of it is missing or damaged.
        UnsupportedModelError: As for `adapt`.
        HeadNotFoundError: `head` is given but holds no head.
        HeadMismatchError: The head does not fit the model.
    """
    validated_flag("dequantize", dequantize)
    validated_flag("lazy", lazy)
    validated_flag("trust_remote_code", trust_remote_code)
    validated_mapping("tokenizer_config", tokenizer_config)
    validated_mapping("model_config", model_config)
    if revision is not None:
        validated_text("revision", revision)
    if head is not False and not isinstance(head, str | Path | None):
        refuse("head", "a path, a hub repository, None or False", head)
    from mlx_lm.utils import load_tokenizer

    from speculate.checkpoints.folder import wrap_errors
    from speculate.checkpoints.hub import resolve_checkpoint

    source = demo_folder("hybrid") if path_or_repo is None else path_or_repo
    folder = resolve_checkpoint(source, revision)
    check_folder(folder, model_config)
    if isinstance(head, str | Path):
        head = resolve_checkpoint(head, head_only=True)  # Fails before anything is read.
    unpacked = dequantize or path_or_repo is None
    stock, config = _load_stock(folder, unpacked, lazy, model_config, trust_remote_code)
    options = None if tokenizer_config is None else dict(tokenizer_config)
    with wrap_errors(folder, "its tokenizer cannot be loaded"):
        tokenizer: TokenizerWrapper = load_tokenizer(folder, options, config.get("eos_token_id"))
    found = _head_for(stock, folder, head, unpacked)
    ids, vocabulary = tokenizer.eos_token_ids, cast("dict[str, int]", tokenizer.get_vocab())
    return adapt(stock, head=found, eos_token_ids=ids, vocabulary=vocabulary), tokenizer


def load_demo(name: str = "hybrid") -> tuple[SpeculativeModel, TokenizerWrapper]:
    """Load one of the bundled models and its tokenizer.

    Args:
        name: "hybrid": a Qwen3.5 with a head. "draft": a smaller dense model that can draft
            for it. "windowed": a gpt-oss whose sliding window a short prompt fills.

    Raises:
        OptionError: No bundled model has that name.
        CheckpointError: This installation lacks it.
    """
    return load(demo_folder(name), dequantize=True)


def _load_stock(
    folder: Path, dequantize: bool, lazy: bool, overrides: Mapping[str, object] | None, trust: bool
) -> tuple[StockModel, dict[str, object]]:
    from speculate.checkpoints.folder import wrap_errors
    from speculate.checkpoints.trunk import dequantize_model, load_trunk
    from speculate.models.registry import adapter_for

    with wrap_errors(folder, "mlx-lm cannot load the model"):
        stock, config = load_trunk(
            folder, lazy=True, model_config=overrides, trust_remote_code=trust
        )
        adapter_for(stock)  # Refuses an unsupported model before its weights are read.
        if dequantize:
            dequantize_model(stock)
        if not lazy:
            mx.eval(cast("Module", stock).parameters())
    return stock, config


def _head_for(
    stock: StockModel, folder: Path, head: Path | Literal[False] | None, dequantize: bool
) -> MTPHead | None:
    """Load the head that `load` attaches: by default the folder's own, if it can be used."""
    if head is not None:
        return load_mtp_head(head, stock, dequantize=dequantize) if head else None
    try:
        return load_mtp_head(folder, stock, dequantize=dequantize)
    except StaleIndexError as error:
        # `stacklevel` attributes the warning to the caller of `load`.
        text = f"{folder}: loaded without its multi-token-prediction head: {error}"
        warnings.warn(text, SpeculateWarning, stacklevel=3)
    except HeadNotFoundError as error:
        _logger.info("%s", error)
    except UnsupportedModelError as error:
        _logger.warning("%s: loaded without its head: %s", folder, error)
    return None


def check_folder(folder: Path, overrides: Mapping[str, object] | None) -> None:
    """Refuse a model's folder that mlx-lm could not load, reading configs and headers only.

    Raises:
        CheckpointError: It is not a folder, or part of it is missing or damaged.
        UnsupportedModelError: mlx-lm does not support the model type.
    """
    from speculate.checkpoints.folder import check_files, check_layers, read_json

    if not folder.is_dir():
        raise CheckpointError(f"{folder}: is a file. Give the folder that holds config.json")
    if not (folder / "config.json").exists():
        remedy = "Give the folder of a model, downloaded from a hub or written by mlx_lm.convert"
        raise CheckpointError(f"{folder}: has no config.json. {remedy}")
    config = {**read_json(folder / "config.json"), **(overrides or {})}
    check_layers(config, folder)
    _check_type(folder, config)
    if not any(folder.glob("model*.safetensors")):
        problem = "has no weights, which mlx-lm expects in model*.safetensors"
        remedy = "Download the whole folder, or convert the model with mlx_lm.convert"
        raise CheckpointError(f"{folder}: {problem}. {remedy}")
    check_files(folder)


def _check_type(folder: Path, config: Mapping[str, object]) -> None:
    from mlx_lm.utils import _get_classes

    from speculate.models.registry import factory_for, supported

    name = config.get("model_type")
    if not isinstance(name, str):
        raise CheckpointError(f"{folder}/config.json: has no model_type, so it is not a model")
    if config.get("model_file") is not None:
        return  # The checkpoint has its own model code.
    try:
        model_class, _ = _get_classes(dict(config))
    except (ValueError, AttributeError) as error:
        remedy = f"Supported: {', '.join(supported())}"
        if name.endswith("_mtp"):
            remedy = "It is only a head: load its trunk, and pass this folder as head="
        text = f"{folder}: mlx-lm has no model type {name!r}. {remedy}"
        raise UnsupportedModelError(text) from error
    factory_for(model_class)  # Refuses an unsupported model before it is built.
