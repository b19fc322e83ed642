"""Placing a small tensor inside a larger one that is zero elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import attrs
import mlx.core as mx
import numpy as np


@final
@attrs.frozen(eq=False)
class Axis:
    """Where the entries of a small axis stand on a large one.

    Attributes:
        size: Of the large axis.
        at: `(small,)` places on it.
    """

    size: int
    at: np.ndarray


@final
@attrs.frozen(eq=False)
class Place:
    """Where a tensor goes, and what it is multiplied with on the way.

    Attributes:
        axes: One for each of the tensor's.
        gain: The factor.
    """

    axes: Sequence[Axis]
    gain: float = 1.0

    def put(self, small: mx.array) -> mx.array:
        """The large tensor."""
        large = np.zeros([axis.size for axis in self.axes], dtype=np.float32)
        large[np.ix_(*[axis.at for axis in self.axes])] = np.array(small) * self.gain
        return mx.array(large)


def front(small: int, large: int) -> Axis:
    """The first entries."""
    return Axis(large, np.arange(small))


def spread(small: int, step: int) -> Axis:
    """Every `step`-th entry."""
    return Axis(small * step, np.arange(small) * step)


def joined(*axes: Axis) -> Axis:
    """One axis behind the other."""
    starts = np.cumsum([0, *(axis.size for axis in axes)])
    places = [axis.at + start for axis, start in zip(axes, starts[:-1], strict=True)]
    return Axis(int(starts[-1]), np.concatenate(places))


def repeated(small: int, large: int, each: Axis) -> Axis:
    """The same axis `small` times, at the front of an axis that has it `large` times."""
    places = np.concatenate([each.at + index * each.size for index in range(small)])
    return Axis(large * each.size, places)


def put_all(tensors: Mapping[str, mx.array], places: Mapping[str, Place]) -> dict[str, mx.array]:
    """Place tensors by the end of their names.

    Args:
        tensors: By name.
        places: By the part of a name behind the layer's number, or the whole name.
    """
    return {name: _place_of(name, places).put(tensor) for name, tensor in tensors.items()}


def _place_of(name: str, places: Mapping[str, Place]) -> Place:
    return next(place for end, place in places.items() if f".{name}".endswith(f".{end}"))
