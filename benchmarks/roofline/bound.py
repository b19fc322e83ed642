"""The formula of the speedup, with times that bandwidth and arithmetic allow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import attrs

from benchmarks.roofline.facts import Machine
from benchmarks.roofline.shape import Shape


@final
@attrs.frozen
class Bound:
    """A model on a machine, whose kernels read every weight once and waste nothing.

    Attributes:
        shape: The model.
        machine: The machine.
        context: Tokens of text in front.
    """

    shape: Shape
    machine: Machine
    context: int

    def seconds(self, rows: int) -> float:
        """`max(bytes / bandwidth, operations / operations a second)` of a forward."""
        moved = self.shape.weight_bytes(rows) + self.shape.cache_bytes(self.context)
        computed = self.shape.operations(rows, self.context)
        return max(moved / self.machine.bandwidth, computed / self.machine.operations)

    def v(self, rows: int) -> float:
        """Time of a forward of so many rows, in forwards of one."""
        return self.seconds(rows) / self.seconds(1)

    def c(self) -> float:
        """Time of a step of the head, in the same unit; 0 for a lookup, where there is none."""
        if not self.shape.head:
            return 0.0
        return self.shape.head_bytes(self.context) / self.machine.bandwidth / self.seconds(1)

    def speedup(self, survival: Sequence[float]) -> float:
        """`(1 + S_1 + ... + S_k) / (v(k + 1) + k c)`.

        Args:
            survival: `S_1` to `S_k`: how likely the first `j` drafts are all right.
        """
        depth = len(survival)
        return (1 + sum(survival)) / (self.v(depth + 1) + depth * self.c())

    def best(self, survival: Sequence[float]) -> int:
        """The depth with the highest speedup, 0 to all of `survival`."""
        return max(range(len(survival) + 1), key=lambda depth: self.speedup(survival[:depth]))
