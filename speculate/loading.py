"""From a folder, a hub name or a model in memory to something that can speculate.

`mlx_lm` is imported when a function is called, so that `import speculate` stays quick.
"""

from __future__ import annotations

import atexit
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


DEMO_MODELS: Final = ("hybrid", "draft", "windowed")
"""A Qwen3.5 with a head, a smaller dense model for it, and a gpt-oss with a short window."""

DATA: Final = "data"
PROMPTS: Final = "prompts"


def demo_folder(name: str) -> Path:
    """Where a bundled model lies.

    Raises:
        OptionError: There is none of that name.
        CheckpointError: This installation came without it.
    """
    if name not in DEMO_MODELS:
        raise OptionError(f"no bundled model is called {name!r}; there are {_listed()}")
    folder = _data() / name
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: the bundled model is missing; reinstall mlx-speculate")
    return folder


def demo_prompt() -> str:
    """The beginning of a source file that no bundled model has seen.

    Raises:
        CheckpointError: This installation came without it.
    """
    folder = _data() / PROMPTS
    found = sorted(folder.glob("code_*.txt"))
    if not found:
        raise CheckpointError(f"{folder}: the bundled prompts are missing; reinstall mlx-speculate")
    return found[0].read_text(encoding="utf-8")


def _data() -> Path:
    found = files("speculate") / DATA
    return found if isinstance(found, Path) else _extracted()


@cache
def _extracted() -> Path:
    """The data of a package that is imported from an archive, unpacked while the process runs."""
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


def _listed() -> str:
    return ", ".join(DEMO_MODELS)


def load_mtp_head(
    path_or_repo: str | Path,
    model: SpeculativeModel | StockModel,
    *,
    norms: Convention | None = None,
    feed: Feed = "post_norm",
    dequantize: bool = False,
    revision: str | None = None,
) -> MTPHead:
    """Load a head for a model, to be attached by `adapt(..., head=head)`.

    Args:
        path_or_repo: A checkpoint that kept its head, a safetensors file that holds one, or
            a drafter published on its own.
        model: The trunk.
        norms: How the head's norms are stored, where you know better than the files tell.
        feed: What a chain feeds back; published heads are trained on the default.
        dequantize: Turn quantised weights into float32.
        revision: A branch, a tag or a commit of the repository.

    Raises:
        OptionError: An option cannot be used.
        HeadNotFoundError: There is none; a `StaleIndexError` where an index lists one.
        CheckpointError: It is damaged, or stored in a way that is not supported.
        HeadMismatchError: It does not fit the model.
        UnsupportedModelError: No head is known for the model's family.
    """
    from speculate.checkpoints import find_head, read_head
    from speculate.checkpoints.norms import CONVENTIONS
    from speculate.models.mtp import FEEDS, build_head

    validated_choice("norms", norms, (*CONVENTIONS, None))
    validated_choice("feed", feed, FEEDS)
    validated_flag("dequantize", dequantize)
    if revision is not None:
        validated_text("revision", revision)
    stock = stock_of(model)
    from speculate.checkpoints.folder import resolve_checkpoint, wrap_errors

    path = resolve_checkpoint(path_or_repo, revision, head_only=True)
    with wrap_errors(path, "the head cannot be read"):
        tensors = read_head(find_head(path), norms=norms)
        return build_head(stock, tensors.dequantized() if dequantize else tensors, feed=feed)


def head_for(
    stock: StockModel,
    folder: Path,
    head: str | Path | Literal[False] | None,
    *,
    dequantize: bool,
) -> MTPHead | None:
    """The head to attach while a model is loaded.

    Args:
        stock: The model.
        folder: Where it came from.
        head: Where the head is; `None` for the folder's own, if any; `False` for none.
        dequantize: Turn quantised weights into float32.
    """
    import logging

    logger = logging.getLogger(__name__)
    if head is False:
        return None
    if head is not None:
        return load_mtp_head(head, stock, dequantize=dequantize)
    try:
        return load_mtp_head(folder, stock, dequantize=dequantize)
    except StaleIndexError as error:
        # As if `load` had warned: it is the caller's folder.
        text = f"{folder}: loaded without its multi-token-prediction head: {error}"
        warnings.warn(text, SpeculateWarning, stacklevel=3)
    except HeadNotFoundError as error:
        logger.info("%s", error)
    except UnsupportedModelError as error:
        logger.warning("%s: the head is left out: %s", folder, error)
    return None


def adapt(
    stock_model: StockModel | SpeculativeModel,
    *,
    head: MTPHead | None = None,
    eos_token_ids: Iterable[int] = (),
    vocabulary: Mapping[str, int] | None = None,
    recurrence: Recurrence | None = None,
) -> SpeculativeModel:
    """Wrap a model of mlx-lm, which stays as it is.

    Args:
        stock_model: The model. One that is adapted already is adapted anew, and what is
            not given here stays as it was.
        head: A multi-token-prediction head, from `load_mtp_head`.
        eos_token_ids: Ids that end a text: a tokenizer's `eos_token_ids`.
        vocabulary: Token strings and their ids, a tokenizer's `get_vocab()`, to compare
            with a draft model's.
        recurrence: How Gated DeltaNet layers run a block and are taken back, `"ops"` or
            `"kernel"`; `None` for what costs least on the default device.

    Raises:
        UnsupportedModelError: No adapter is registered for this architecture, or the one that
            another package brings gives other logits than the model: it is compared with it
            over a few tokens, for which the weights are read.
        OptionError: An option cannot be used.
    """
    from speculate.models.adapter import StockAdapter
    from speculate.models.registry import adapter_for, is_built_in
    from speculate.models.stock_check import check_against_stock

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
    if recurrence is None:
        # Factories of other packages need not know the keyword.
        adapter = factory(stock, head=head, eos_token_ids=stop, vocabulary=vocabulary)
    else:
        adapter = factory(
            stock, head=head, eos_token_ids=stop, vocabulary=vocabulary, recurrence=recurrence
        )
    if not is_built_in(factory, type(stock)):
        check_against_stock(adapter, stock)
    return adapter


def stock_of(model: SpeculativeModel | StockModel) -> StockModel:
    """The model of mlx-lm under an adapter, or `model` itself where it is one.

    Raises:
        UnsupportedModelError: It is neither.
    """
    from mlx.nn import Module

    from speculate.models.adapter import StockAdapter

    if isinstance(model, StockAdapter):
        return model.stock
    if isinstance(model, Module):
        return cast(StockModel, model)
    raise UnsupportedModelError(
        f"{type(model).__qualname__} is no model of mlx-lm, and no adapter that tells which "
        "one it drives"
    )


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
        path_or_repo: A folder or hub repository that mlx-lm loads; `None` is the bundled demo.
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
        The model, with the tokenizer's end-of-text ids and vocabulary, and the tokenizer.

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
    from speculate.checkpoints.folder import resolve_checkpoint

    source = demo_folder("hybrid") if path_or_repo is None else path_or_repo
    folder = resolve_checkpoint(source, revision)
    check_folder(folder, model_config)
    if isinstance(head, str | Path):
        head = resolve_checkpoint(head, head_only=True)  # Fails before anything is read.
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
    from speculate.checkpoints.folder import wrap_errors
    from speculate.checkpoints.trunk import dequantize_model
    from speculate.models.registry import adapter_for

    with wrap_errors(folder, "mlx-lm cannot load the model"):
        stock, config = load_trunk(
            folder,
            lazy=True,
            model_config=None if overrides is None else dict(overrides),
            trust_remote_code=trust_remote_code,
        )
        # Before gigabytes are read: is there any use for them?
        adapter_for(stock)
        if dequantize:
            dequantize_model(stock)
        if not lazy:
            mx.eval(cast("Module", stock).parameters())
    return stock, config


def _load_tokenizer(
    folder: Path, options: Mapping[str, object] | None, config: Mapping[str, object]
) -> TokenizerWrapper:
    from mlx_lm.utils import load_tokenizer

    from speculate.checkpoints.folder import wrap_errors

    with wrap_errors(folder, "its tokenizer cannot be loaded"):
        tokenizer: TokenizerWrapper = load_tokenizer(
            folder, None if options is None else dict(options), config.get("eos_token_id")
        )
    return tokenizer


def check_folder(folder: Path, overrides: Mapping[str, object] | None) -> None:
    """Refuse a folder that mlx-lm could not load, and say why.

    Reads `config.json` and the headers of weights, and nothing else.

    Args:
        folder: Where the model lies.
        overrides: Entries that replace those of `config.json`.

    Raises:
        CheckpointError: It is no folder, or something is missing in it or broken.
        UnsupportedModelError: mlx-lm has no such model.
    """
    from speculate.checkpoints.folder import check_files, check_layers, read_json

    if not folder.is_dir():
        raise CheckpointError(f"{folder}: is a file. Give the folder that holds config.json")
    if not (folder / "config.json").exists():
        raise CheckpointError(
            f"{folder}: has no config.json. Give the folder of a model, as downloaded from a "
            "hub or written by mlx_lm.convert"
        )
    config = {**read_json(folder / "config.json"), **(overrides or {})}
    check_layers(config, folder)
    _check_type(folder, config)
    if not any(folder.glob("model*.safetensors")):
        raise CheckpointError(
            f"{folder}: has no weights, which mlx-lm expects in model*.safetensors. Download "
            "the folder whole, or convert what is there with mlx_lm.convert"
        )
    check_files(folder)


def _check_type(folder: Path, config: Mapping[str, object]) -> None:
    from mlx_lm.utils import _get_classes

    from speculate.models.registry import factory_for, supported

    name = config.get("model_type")
    if not isinstance(name, str):
        raise CheckpointError(f"{folder}/config.json: names no model_type, so it is no model's")
    if config.get("model_file") is not None:
        return  # The folder brings code of its own.
    try:
        model_class, _ = _get_classes(dict(config))
    except (ValueError, AttributeError) as error:
        if name.endswith("_mtp"):
            remedy = "It is a head alone: load its trunk, and pass this as head="
        else:
            remedy = f"Supported: {', '.join(supported())}"
        raise UnsupportedModelError(
            f"{folder}: mlx-lm has no model type {name!r}. {remedy}"
        ) from error
    # Asked before the model is made: how much a config may ask of others is not known.
    factory_for(model_class)
