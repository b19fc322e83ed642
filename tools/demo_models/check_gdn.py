"""Checks the chunked delta rule, and all training-time operations, against stock's.

Run it with ``python -m tools.demo_models.check_gdn``; it fails loudly where the two differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.gated_delta import gated_delta_update, normalize_qk

from tools.demo_models import gdn_chunked, loop, models
from tools.demo_models.training_ops import training_ops


def _inputs() -> list[mx.array]:
    q, k = (mx.random.normal((2, 96, 3, 32)) for _ in range(2))
    q, k = normalize_qk(q, k, inv_scale=32**-0.5, eps=1e-6)
    v = mx.random.normal((2, 96, 6, 32))
    a, b = (mx.random.normal((2, 96, 6)) for _ in range(2))
    decay, bias = mx.random.normal((6,)) - 2, mx.random.normal((6,))
    return [q, k, v, a, b, decay, bias]


def _gap(a: mx.array, b: mx.array) -> float:
    """Returns the largest difference, relative to the largest value."""
    return float(np.array(mx.max(mx.abs(a - b)) / mx.max(mx.abs(a))))


def rule() -> float:
    """Compares values and gradients of the rule alone."""
    inputs = _inputs()
    weights = mx.sin(mx.arange(32))

    def scalar(function: Callable[..., Any]) -> Callable[..., mx.array]:
        return lambda *x: (function(*x)[0] * weights).sum()

    gaps = [_gap(gated_delta_update(*inputs)[0], gdn_chunked.gated_delta_update(*inputs)[0])]
    every = list(range(len(inputs)))
    stock = mx.grad(scalar(gated_delta_update), argnums=every)(*inputs)
    ours = mx.grad(scalar(gdn_chunked.gated_delta_update), argnums=every)(*inputs)
    return max(gaps + [_gap(x, y) for x, y in zip(stock, ours, strict=True)])


def trunk() -> float:
    """Compares the whole target with random weights, under all training-time operations."""
    model = models.hybrid()
    weights = loop.flat(model.parameters())  # type: ignore[no-untyped-call]
    shapes = [(k, v.shape) for k, v in weights.items() if v.ndim == 2]
    model.load_weights([(k, 0.06 * mx.random.normal(s)) for k, s in shapes], strict=False)
    model.eval()
    tokens = mx.random.randint(0, 1024, (2, 64))
    stock = model.trunk(tokens)
    with training_ops():
        ours = model.trunk(tokens)
    return _gap(stock, ours)


def main() -> None:
    """Runs both comparisons."""
    mx.set_default_device(mx.cpu)
    mx.random.seed(0)
    for name, gap, most in (("rule", rule(), 1e-5), ("trunk", trunk(), 1e-4)):
        print(f"{name:6} largest relative difference {gap:.1e} (at most {most:.0e})")
        if gap > most:
            raise SystemExit(f"{name}: the training-time operations differ from stock's.")


if __name__ == "__main__":
    main()
