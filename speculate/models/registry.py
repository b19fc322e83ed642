"""Architecture -> adapter: a table, entry points of other packages, and a check of the latter.

An adapter of another package is compared with mlx-lm's own model when it is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from itertools import accumulate
from typing import Final, cast

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models.cache import make_prompt_cache
from typing_extensions import Protocol

from speculate._mx import ulp
from speculate.errors import SpeculateError, UnsupportedModelError
from speculate.models.adapter import DenseAdapter, StockAdapter
from speculate.models.gpt_oss import GptOssAdapter
from speculate.models.qwen3_5 import Qwen35Adapter
from speculate.models.qwen3_next import Qwen3NextAdapter
from speculate.protocols import MTPHead, Recurrence, SpeculativeModel, StockModel

ENTRY_POINTS: Final = "speculate.models"
"""Entry-point group of other packages: architecture of mlx-lm -> adapter factory."""

CHUNKS: Final = (5, 1)
"""Tokens of each forward: a block, then a step that reads the caches after the block."""


class AdapterFactory(Protocol):
    """An adapter class, or a function that makes an adapter."""

    def __call__(
        self,
        stock: StockModel,
        /,
        *,
        head: MTPHead | None,
        eos_token_ids: Iterable[int],
        vocabulary: Mapping[str, int] | None,
        recurrence: Recurrence | None = None,
    ) -> SpeculativeModel:
        """Wrap a model of mlx-lm. `recurrence` is passed only where one was chosen."""


BUILT_IN: Final[Mapping[str, AdapterFactory]] = {
    "gpt_oss": GptOssAdapter,
    "lfm2": DenseAdapter,
    "llama": DenseAdapter,
    "qwen2": DenseAdapter,
    "qwen3": DenseAdapter,
    "qwen3_moe": DenseAdapter,
    "qwen3_5": Qwen35Adapter,
    "qwen3_5_moe": Qwen35Adapter,
    "qwen3_next": Qwen3NextAdapter,
}
"""Module of mlx-lm -> adapter of its models. The tests compare each with the stock model."""


def supported() -> list[str]:
    """Return the names of the architectures that have an adapter."""
    return sorted({*BUILT_IN, *(entry.name for entry in entry_points(group=ENTRY_POINTS))})


def adapter_for(stock: StockModel) -> AdapterFactory:
    """Find the adapter of a model, unless it is one; see `factory_for`."""
    if isinstance(stock, StockAdapter):
        raise UnsupportedModelError("this model is adapted already: use it as it is")
    return factory_for(type(stock))


def factory_for(model_class: type[object]) -> AdapterFactory:
    """Find the adapter of a model's class. Entry points take precedence over the table.

    A model's architecture is the name of the module that defines its class: the name
    that mlx-lm looks up for a config's `model_type`.

    Raises:
        UnsupportedModelError: No adapter is registered for it, or more than one.
    """
    architecture = model_class.__module__.rpartition(".")[2]
    built_in = BUILT_IN.get(architecture)
    entries = {e.value: e for e in entry_points(group=ENTRY_POINTS, name=architecture)}
    found = {value: _load(entry) for value, entry in sorted(entries.items())}
    others = {value: factory for value, factory in found.items() if factory is not built_in}
    if len(others) > 1:
        raise UnsupportedModelError(
            f"several packages name an adapter for '{architecture}' in the entry points "
            f"'{ENTRY_POINTS}': {', '.join(others)}. Uninstall all but one of them"
        )
    factory = next(iter(others.values()), built_in)
    if factory is not None:
        return factory
    raise UnsupportedModelError(
        f"no adapter drives '{architecture}' ({model_class.__qualname__}). Supported: "
        f"{', '.join(supported())}. To drive it, write a class with `make_cache`, `adopt` and "
        "`forward` (see 'Writing an adapter'), and name it under "
        f'[project.entry-points."{ENTRY_POINTS}"] of your pyproject.toml: '
        f'{architecture} = "your_package:YourAdapter"'
    )


def is_built_in(factory: AdapterFactory, model_class: type[object]) -> bool:
    """Return whether `factory` is the table's for a class that mlx-lm itself defines."""
    package, _, architecture = model_class.__module__.rpartition(".")
    return package == "mlx_lm.models" and factory is BUILT_IN.get(architecture)


def _load(entry: EntryPoint) -> AdapterFactory:
    try:
        factory: AdapterFactory = entry.load()
    except Exception as error:
        raise UnsupportedModelError(
            f"the entry point {entry.name} = \"{entry.value}\" of '{ENTRY_POINTS}' cannot be "
            f"loaded: {type(error).__name__}: {error}"
        ) from error
    return factory


def check_against_stock(adapter: SpeculativeModel, stock: StockModel) -> None:
    """Compare an adapter's logits with the stock model's over a few tokens. Synchronises.

    Both are fed the same chunks into fresh caches, which are released. On the CPU every bit
    must be equal; elsewhere the logits may differ by rounding.

    Raises:
        UnsupportedModelError: The logits differ, or one of the two raised. Names the adapter
            and the difference.
        CannotRewindError: No backend can rewind one of the model's caches.
    """
    family = type(stock).__module__
    name = f"{type(adapter).__module__}:{type(adapter).__qualname__}"
    remedy = (
        f"Compare its forward with Model.__call__ of {family}, which may scale or cap logits "
        "after the output matrix, scale embeddings, or choose caches and masks in its own way, "
        "and write an adapter that does the same (see 'Writing an adapter')"
    )
    try:
        # Known without computing the logits.
        width = stock(mx.array([[0]]), cache=_stock_cache(stock)).shape[-1]
        if adapter.vocab_size != width:
            raise UnsupportedModelError(
                f"{name}: vocab_size is {adapter.vocab_size}, and the logits of {family} have "
                f"{width} columns"
            )
        # Spread over the vocabulary: the first ids are special, and often untrained.
        count = sum(CHUNKS)
        tokens = mx.array([[width * (place + 1) // (count + 2) for place in range(count)]])
        expected, cache = _stock_logits(stock, tokens, CHUNKS), adapter.make_cache()
        blocks = [adapter.forward(block, cache).logits for block in _blocks(tokens, CHUNKS)]
        found = mx.concatenate(blocks, axis=1)
        mx.eval(expected, found)
    except SpeculateError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        raise UnsupportedModelError(
            f"{name} cannot drive {family}: {type(error).__name__}: {text}. {remedy}"
        ) from error
    if found.shape != expected.shape or found.dtype != expected.dtype:
        difference = f"{found.dtype} {found.shape} instead of {expected.dtype} {expected.shape}"
    elif mx.array_equal(found, expected, equal_nan=True):
        return
    else:
        largest, difference = _difference(found, expected)
        if largest <= _allowed(stock, tokens, expected):
            return
    raise UnsupportedModelError(
        f"{name} gives other logits than {family}, and would change the text: {difference}. "
        f"{remedy}"
    )


def _stock_cache(stock: StockModel) -> list[object]:
    return cast("list[object]", make_prompt_cache(cast(Module, stock)))


def _stock_logits(stock: StockModel, tokens: mx.array, chunks: Sequence[int]) -> mx.array:
    cache = _stock_cache(stock)
    return mx.concatenate([stock(block, cache=cache) for block in _blocks(tokens, chunks)], axis=1)


def _blocks(tokens: mx.array, chunks: Sequence[int]) -> list[mx.array]:
    return [*mx.split(tokens, [*accumulate(chunks[:-1])], axis=1)]


def _allowed(stock: StockModel, tokens: mx.array, expected: mx.array) -> float:
    """Return the largest difference that rounding explains: 0 on the CPU.

    Elsewhere, two units in the last place, as of logits one rounding apart; or twice mlx-lm's own
    difference, between blocks and one single forward, if that is more.
    """
    if mx.default_device().type == mx.cpu:
        return 0.0
    noise, _ = _difference(_stock_logits(stock, tokens, [tokens.shape[1]]), expected)
    finite = mx.where(mx.isfinite(expected), mx.abs(expected.astype(mx.float32)), 0.0)
    return 2.0 * max(ulp(cast(float, finite.max().item()), expected.dtype), noise)


def _difference(found: mx.array, expected: mx.array) -> tuple[float, str]:
    """Return the largest difference of two logits, and a description."""
    one, other = found.astype(mx.float32), expected.astype(mx.float32)
    same = (one == other) | (mx.isnan(one) & mx.isnan(other))
    sizes = mx.where(same, 0.0, mx.abs(one - other))
    sizes = mx.where(mx.isnan(sizes), math.inf, sizes)
    row, column = divmod(cast(int, mx.argmax(sizes).item()), sizes.shape[-1])
    largest = cast(float, sizes[0, row, column].item())
    count = cast(int, mx.sum(mx.logical_not(same)).item())
    return largest, (
        f"{count} of {sizes.size} logits differ, by {largest:.3g} at most: token {column} after "
        f"{row + 1} tokens has {one[0, row, column].item():.6g} instead of "
        f"{other[0, row, column].item():.6g}"
    )
