"""Which adapter drives which model: by entry points, so that other packages can add some."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from typing import Final

from typing_extensions import Protocol

from speculate.errors import UnsupportedModelError
from speculate.models.adapter import StockAdapter
from speculate.protocols import MTPHead, Recurrence, SpeculativeModel, StockModel

ENTRY_POINTS: Final = "speculate.models"
"""Group of entry points: an architecture of mlx-lm -> the class that drives it."""


class AdapterFactory(Protocol):
    """What an entry point names: a class, or a function that makes an adapter."""

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


def supported() -> list[str]:
    """The architectures that have an adapter, by name."""
    return sorted({entry.name for entry in entry_points(group=ENTRY_POINTS)})


def adapter_for(stock: StockModel) -> AdapterFactory:
    """Find what drives a model.

    A model's architecture is the name of the module that defines its class: the name
    that mlx-lm looks up for a config's `model_type`.

    Raises:
        UnsupportedModelError: No adapter is registered for it.
    """
    if isinstance(stock, StockAdapter):
        raise UnsupportedModelError("this model is adapted already: use it as it is")
    return factory_for(type(stock))


def factory_for(model_class: type[object]) -> AdapterFactory:
    """The same, by a model's class.

    Raises:
        UnsupportedModelError: No adapter is registered for it.
    """
    architecture = model_class.__module__.rpartition(".")[2]
    for entry in entry_points(group=ENTRY_POINTS, name=architecture):
        factory: AdapterFactory = entry.load()
        return factory
    raise UnsupportedModelError(
        f"no adapter drives '{architecture}' ({model_class.__qualname__}). Supported: "
        f"{', '.join(supported())}. If it is a trunk and an output matrix, one line under "
        f'[project.entry-points."{ENTRY_POINTS}"] of your pyproject.toml is enough: '
        f'{architecture} = "speculate.models.dense:DenseAdapter". If not, write a class with '
        "`make_cache`, `adopt` and `forward` (see 'Writing an adapter'), and name it there: "
        f'{architecture} = "your_package:YourAdapter".'
    )
