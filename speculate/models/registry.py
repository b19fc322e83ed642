"""Architecture -> adapter: a table, and the entry points of other packages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from typing_extensions import Protocol

from speculate.errors import UnsupportedModelError
from speculate.models.adapter import DenseAdapter, StockAdapter
from speculate.models.gpt_oss import GptOssAdapter
from speculate.models.qwen3_5 import Qwen35Adapter
from speculate.models.qwen3_next import Qwen3NextAdapter
from speculate.protocols import MTPHead, Recurrence, SpeculativeModel, StockModel

ENTRY_POINTS: Final = "speculate.models"
"""Entry-point group of other packages: architecture of mlx-lm -> adapter factory."""


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
    """Find the adapter of a model, unless it is one; see `factory_for`.

    Raises:
        UnsupportedModelError: No adapter is registered for it, or more than one.
    """
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
