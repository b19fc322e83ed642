"""Random numbers that depend only on where they are used.

Each is an element-wise hash of a key and a token id. It therefore does not depend on how many
numbers were drawn before, on the padding of the vocabulary or on the batch that holds a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import mlx.core as mx

_MASK: Final = (1 << 64) - 1


def key(seed: int, stream: int, position: int) -> tuple[int, int]:
    """The key of one sequence position: two 32-bit words. Different streams are independent."""
    word = _mix64(_mix64(_mix64(seed & _MASK) + stream) + position)
    return word & 0xFFFFFFFF, word >> 32


def hashes(keys: Sequence[tuple[int, int]], width: int) -> mx.array:
    """Hash the ids `0` to `width - 1` under each key: `(len(keys), width)` uint32, uniform.

    Integer arithmetic: the same on every device.
    """
    ids = mx.arange(width, dtype=mx.uint32)[None]
    low = mx.array([[pair[0]] for pair in keys], dtype=mx.uint32)
    high = mx.array([[pair[1]] for pair in keys], dtype=mx.uint32)
    return _mix32(_mix32(ids ^ low) + high)


def uniform(keys: Sequence[tuple[int, int]], width: int) -> mx.array:
    """Uniform numbers in (0, 1) for the ids under each key, `(len(keys), width)` float32.

    Small numbers keep their relative precision, down to 2**-33.
    """
    number = (hashes(keys, width).astype(mx.float32) + 0.5) * 2.0**-32
    return mx.minimum(number, 1 - 2.0**-24)


def gumbel(keys: Sequence[tuple[int, int]], width: int) -> mx.array:
    """Standard Gumbel noise, `(len(keys), width)` float32, finite.

    `argmax(log p + gumbel)` has the distribution p (Gumbel 1954; Maddison, Tarlow and Minka,
    "A* Sampling", 2014). The large values, which decide the argmax, come from small uniform
    numbers, whose relative precision is high.
    """
    return -mx.log(-mx.log1p(-uniform(keys, width)))


def _mix32(x: mx.array) -> mx.array:
    """A permutation of 32-bit words: "triple32" of C. Wellons' hash prospector (2018)."""
    x = (x ^ (x >> 17)) * mx.array(0xED5AD4BB, dtype=mx.uint32)
    x = (x ^ (x >> 11)) * mx.array(0xAC4C1B51, dtype=mx.uint32)
    x = (x ^ (x >> 15)) * mx.array(0x31848BAB, dtype=mx.uint32)
    return x ^ (x >> 14)


def _mix64(x: int) -> int:
    """A permutation of 64-bit words: one step of SplitMix64 (Steele, Lea and Flood, 2014)."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
