"""The layers of a model that is not loaded: their caches, and how those take tokens back."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Final, cast, final

import attrs
from mlx.nn.layers.base import Module
from mlx_lm.models.cache import ArraysCache, CacheList, RotatingKVCache, make_prompt_cache
from mlx_lm.utils import _get_classes

from speculate.backends.adopt import adopt
from speculate.checkpoints.folder import check_layers
from speculate.errors import CannotRewindError, UnsupportedModelError
from speculate.models.qwen3_5 import Qwen35Adapter
from speculate.models.qwen3_next import Qwen3NextAdapter
from speculate.models.registry import factory_for
from speculate.protocols import SpeculativeModel, StockModel

OFFSET: Final = "exactly, to any token: an offset moves back"
WINDOW: Final = "exactly, to any token: rows behind the window are kept"
RECORDED: Final = "exactly, to any token: the layer's inputs and states are recorded"
BLOCKS: Final = "by whole blocks: accepted tokens are fed again"


@final
@attrs.frozen
class Layers:
    """Layers whose caches are alike.

    Attributes:
        indices: Which ones, from 0.
        cache: The class of mlx-lm, and the size of a window.
        rewind: How tokens are taken back.
        can_rewind: Whether they can be at all.
    """

    indices: tuple[int, ...]
    cache: str
    rewind: str
    can_rewind: bool


@final
@attrs.frozen
class Architecture:
    """What a config alone tells.

    Attributes:
        adapter: The class that drives such a model; `None` where there is none.
        layers: In groups, by their first layer.
        vocabulary_size: Columns of the logits; `None` where nothing drives the model.
        problem: Why nothing is known of the layers, or nothing drives them.
    """

    adapter: str | None = None
    layers: tuple[Layers, ...] = ()
    vocabulary_size: int | None = None
    problem: str | None = None


def architecture(config: Mapping[str, object], folder: Path) -> Architecture:
    """Make a model of mlx-lm as a config describes it, and look at it.

    Its arrays are lazy, and are never computed: nothing is read and nothing allocated.

    Raises:
        CheckpointError: The config asks for more layers than anybody has.
    """
    check_layers(config, folder)
    if config.get("model_file") is not None:
        return Architecture(problem="the folder brings code of its own, which is not run here")
    try:
        model_class, args_class = _get_classes(dict(config))
        # One that nothing drives is not made: how much a config may ask of it is not known.
        factory = factory_for(model_class)
        stock = cast(StockModel, model_class(args_class.from_dict(deepcopy(dict(config)))))
        caches = make_prompt_cache(cast(Module, stock))
    except UnsupportedModelError as error:
        return Architecture(problem=str(error))
    except Exception as error:
        text = " ".join(str(error).split())
        return Architecture(problem=f"mlx-lm makes no model of it: {type(error).__name__}: {text}")
    adapter, problem = None, None
    try:
        adapter = factory(stock, head=None, eos_token_ids=(), vocabulary=None)
    except UnsupportedModelError as error:
        problem = str(error)
    return Architecture(
        adapter=None if adapter is None else type(adapter).__name__,
        layers=_grouped([_describe(cache, adapter) for cache in caches]),
        vocabulary_size=None if adapter is None else adapter.vocab_size,
        problem=problem,
    )


def _describe(cache: object, adapter: SpeculativeModel | None) -> tuple[str, str, bool]:
    """A cache's kind, how it goes back, and whether it can."""
    try:
        adopt([cache])
    except CannotRewindError as error:
        return type(cache).__name__, f"not at all: {error}", False
    return _kind(cache), _how(cache, adapter), True


def _kind(cache: object) -> str:
    if isinstance(cache, CacheList):
        return f"CacheList({', '.join(_kind(member) for member in cache.caches)})"
    if isinstance(cache, RotatingKVCache):
        return f"RotatingKVCache({cache.max_size})"
    return type(cache).__name__


def _how(cache: object, adapter: SpeculativeModel | None) -> str:
    if isinstance(cache, CacheList):
        return "; ".join(dict.fromkeys(_how(member, adapter) for member in cache.caches))
    if isinstance(cache, RotatingKVCache):
        return WINDOW
    if isinstance(cache, ArraysCache):
        records = isinstance(adapter, Qwen35Adapter | Qwen3NextAdapter)
        return RECORDED if records else BLOCKS
    return OFFSET


def _grouped(found: list[tuple[str, str, bool]]) -> tuple[Layers, ...]:
    groups: dict[tuple[str, str, bool], list[int]] = {}
    for index, kind in enumerate(found):
        groups.setdefault(kind, []).append(index)
    return tuple(Layers(tuple(indices), *kind) for kind, indices in groups.items())
