"""Typed helpers over mlx: ids to the host, log-probabilities, arrays of caches, fingerprints."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, cast

import mlx.core as mx
from mlx.utils import tree_flatten
from typing_extensions import Protocol

MANTISSA_BITS: Final = {mx.float64: 52, mx.float32: 23, mx.float16: 10, mx.bfloat16: 7}
"""Stored mantissa bits of each dtype."""


class HoldsArrays(Protocol):
    """A cache, as far as `arrays_of` reads it."""

    def arrays(self) -> list[mx.array]:
        """Return every array it holds."""


class HasParameters(Protocol):
    """A module of mlx, as far as `fingerprint` reads it."""

    def parameters(self) -> dict[str, object]:
        """Return its parameters as a tree."""


def to_ints(tokens: mx.array) -> list[int]:
    """Return a row of ids, `(n,)`, on the host. Synchronises if they were not read before."""
    return cast("list[int]", tokens.tolist())


def log_softmax(logits: mx.array) -> mx.array:
    """Return log-probabilities in float32, along the last axis."""
    logits = logits.astype(mx.float32)
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def row_differences(found: mx.array, expected: mx.array) -> list[float]:
    """Return the largest absolute difference in each row of two `(T, n)` arrays. Synchronises.

    It is infinite where one has NaN.
    """
    size = mx.abs(found.astype(mx.float32) - expected.astype(mx.float32))
    size = mx.where(found == expected, 0.0, mx.where(mx.isnan(size), math.inf, size))
    return cast("list[float]", size.max(axis=-1).tolist())


def ulp(value: float, dtype: mx.Dtype) -> float:
    """Return one unit in the last place of a number: its distance to the next one of the dtype."""
    return 2.0 ** (math.frexp(value)[1] - 1 - MANTISSA_BITS[dtype])


def arrays_of(caches: Iterable[HoldsArrays]) -> list[mx.array]:
    """Return every array that the caches hold, to be evaluated together."""
    return [array for cache in caches for array in cache.arrays()]


def fingerprint(module: object) -> str:
    """Return a hash of a module's class and of each weight's name, shape and dtype.

    The same in every process; no weight is read.

    Args:
        module: A module of mlx.

    Returns:
        16 hexadecimal digits.
    """
    import hashlib  # Takes milliseconds, and few callers need it.

    digest = hashlib.sha256(type(module).__module__.encode())
    parameters = cast(HasParameters, module).parameters()
    for name, weight in cast("list[tuple[str, mx.array]]", tree_flatten(parameters)):
        digest.update(f"{name} {weight.shape} {weight.dtype}\n".encode())
    return digest.hexdigest()[:16]


def unsigned_ids(ids: mx.array) -> mx.array:
    """Return ids of any integer type as unsigned ones, in which negative ids are large."""
    return ids if ids.dtype == mx.uint32 else ids.astype(mx.uint64)


def clamped_ids(ids: mx.array, vocab_size: int) -> mx.array:
    """Return uint32 ids with the last id of a vocabulary in place of those outside it.

    MLX does not check the indices of an embedding: an id out of range may crash the process.
    """
    return mx.minimum(unsigned_ids(ids), vocab_size - 1).astype(mx.uint32)


def mlx_version() -> str:
    """Return the version of MLX."""
    found: str = mx.__version__  # type: ignore[attr-defined]  # not in its stubs
    return found
