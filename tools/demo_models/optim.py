"""Muon for the matrices, AdamW for the rest.

Muon takes about half the steps of AdamW at this size, which is worth its Newton-Schulz products.
"""

from __future__ import annotations

import math

import mlx.core as mx

Tree = dict[str, mx.array]

_MOMENTUM = 0.95
_BETAS = (0.9, 0.97)
_SMALLEST = 64


def is_matrix(name: str, value: mx.array) -> bool:
    """Tells whether Muon takes a parameter: a map between hidden rows, not an embedding."""
    wide = value.ndim >= 2 and min(value.shape[-2:]) >= _SMALLEST
    return wide and "embed_tokens" not in name and "lm_head" not in name


def begin(parameters: Tree) -> Tree:
    """Returns the optimiser's first state."""
    state: Tree = {"step": mx.array(0.0)}
    for name, value in parameters.items():
        state[f"m:{name}"] = mx.zeros_like(value)
        if not is_matrix(name, value):
            state[f"v:{name}"] = mx.zeros_like(value)
    return state


def _orthogonal(x: mx.array, steps: int = 4) -> mx.array:
    """Moves a matrix's singular values towards one (the quintic iteration of Muon)."""
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.swapaxes(-1, -2)
    x = x / (mx.sqrt(mx.sum(x * x, axis=(-2, -1), keepdims=True)) + 1e-7)
    for _ in range(steps):
        square = x @ x.swapaxes(-1, -2)
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * (square @ square)) @ x
    return x.swapaxes(-1, -2) if tall else x


def clip(gradients: Tree, most: float = 1.0) -> Tree:
    """Scales the gradients down to a norm of at most `most`."""
    norm = mx.sqrt(sum((mx.sum(g * g) for g in gradients.values()), mx.array(0.0)))
    factor = mx.minimum(most / (norm + 1e-6), 1.0)
    return {name: g * factor for name, g in gradients.items()}


def update(
    parameters: Tree, gradients: Tree, state: Tree, rate: mx.array, adam_share: float = 0.15
) -> tuple[Tree, Tree]:
    """Takes one step.

    Args:
        parameters: The values before.
        gradients: Their gradients.
        state: The optimiser's state before.
        rate: Muon's rate; AdamW's is `adam_share` of it.
        adam_share: See `rate`.

    Returns:
        The values and the state after.
    """
    gradients = clip(gradients)
    step = state["step"] + 1.0
    out, after = {}, {"step": step}
    for name, value in parameters.items():
        g, m = gradients[name], state[f"m:{name}"]
        if is_matrix(name, value):
            m = _MOMENTUM * m + g
            shape = math.sqrt(max(1.0, value.shape[-2] / value.shape[-1]))
            move = _orthogonal(g + _MOMENTUM * m) * (shape * rate)
            out[name] = value * (1.0 - 0.01 * rate) - move
        else:
            b1, b2 = _BETAS
            m = b1 * m + (1 - b1) * g
            v = b2 * state[f"v:{name}"] + (1 - b2) * g * g
            after[f"v:{name}"] = v
            mean, spread = m / (1 - mx.power(b1, step)), v / (1 - mx.power(b2, step))
            out[name] = value - adam_share * rate * mean / (mx.sqrt(spread) + 1e-8)
        after[f"m:{name}"] = m
    return out, after
