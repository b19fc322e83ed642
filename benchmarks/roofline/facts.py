"""Models and machines that people use.

docs/performance.md says where each is from. Operations a second are estimates, for 16-bit
products on the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

import attrs

from benchmarks.roofline.shape import Shape


@final
@attrs.frozen
class Machine:
    """What bounds a forward.

    Attributes:
        bandwidth: Bytes a second between memory and processor.
        operations: A second.
    """

    bandwidth: float
    operations: float


MACHINES: Final[Mapping[str, Machine]] = {
    "M4 Max": Machine(546e9, 18e12),
    "M5 Max": Machine(614e9, 70e12),
    "M3 Ultra": Machine(819e9, 28e12),
}
"""With 40, 40 and 80 GPU cores."""

MODELS: Final[Mapping[str, Shape]] = {
    "Qwen3.5-4B, 4 bit": Shape(
        hidden=2560,
        vocabulary=248_320,
        attention=8,
        recurrent=24,
        heads=16,
        kv_heads=4,
        head_width=256,
        gated=True,
        inner=9216,
        key_heads=16,
        value_heads=32,
        state_width=128,
        head=True,
    ),
    "Qwen3-Next-80B-A3B, 4 bit": Shape(
        hidden=2048,
        vocabulary=151_936,
        attention=12,
        recurrent=36,
        heads=16,
        kv_heads=2,
        head_width=256,
        gated=True,
        inner=512,
        experts=512,
        chosen=10,
        shared=1,
        key_heads=16,
        value_heads=32,
        state_width=128,
        head=True,
    ),
    "gpt-oss-20b, MXFP4 and 8 bit": Shape(
        hidden=2880,
        vocabulary=201_088,
        attention=24,
        heads=64,
        kv_heads=8,
        head_width=64,
        inner=2880,
        experts=32,
        chosen=4,
        window=128,
        bits=8.5,
        expert_bits=4.25,
    ),
}
"""In groups of 64, 4 bits take 4.5 with scales and biases, 8 bits 8.5; MXFP4 takes 4.25."""
