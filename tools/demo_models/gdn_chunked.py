"""The gated delta rule in chunks: the same recurrence as stock's loop, in matrix products.

With S the state before a chunk and c_i the product of the decays up to step i of it, every step
writes  u_i = beta_i (v_i - k_i S_i),  and S_i unrolls to  c_i S + sum_{j<i} (c_i / c_j) k_j u_j.
So the chunk's u solve one triangular system (I + A) U = beta (V - c K S), where A is strictly
lower with A_ij = beta_i (c_i / c_j) (k_i . k_j).  Its inverse depends on no state: all chunks'
inverses are taken at once, and only two small products per chunk remain sequential.
"""

from __future__ import annotations

from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn

CHUNK = 32


@mx.custom_function
def _inverse_rule(lower: mx.array) -> mx.array:
    """Inverts lower triangular matrices (LAPACK: exact where a power series would cancel)."""
    return mx.linalg.tri_inv(lower, upper=False, stream=mx.cpu)


@_inverse_rule.vjp
def _inverse_vjp(lower: mx.array, cotangent: mx.array, out: mx.array) -> mx.array:
    del lower
    t = out.swapaxes(-1, -2)
    return -(t @ cotangent @ t)


def _chunks(x: mx.array, size: int) -> mx.array:
    """Rearranges [B, T, H, D] to [B, H, T / size, size, D]."""
    b, t, h, d = x.shape
    return x.reshape(b, t // size, size, h, d).transpose(0, 3, 1, 2, 4)


def chunked(
    q: mx.array, k: mx.array, v: mx.array, log_g: mx.array, beta: mx.array, size: int = CHUNK
) -> mx.array:
    """Runs the rule from a zero state.

    Args:
        q: Queries, normalised and scaled, [B, T, H, Dk]; `size` divides T.
        k: Keys, normalised, [B, T, H, Dk].
        v: Values, [B, T, H, Dv].
        log_g: Logarithms of the decays, [B, T, H].
        beta: Write strengths, [B, T, H].
        size: Steps in a chunk.

    Returns:
        The outputs, [B, T, H, Dv].
    """
    b, t, h, dv = v.shape
    q, k, v = (_chunks(x, size) for x in (q, k, v))
    beta = _chunks(beta[..., None], size)
    c = mx.cumsum(_chunks(log_g[..., None], size), axis=-2)  # log c_i, [B, H, N, size, 1]

    ratio = c - c.swapaxes(-1, -2)
    kept = mx.tril(mx.ones((size, size))) > 0
    decay = mx.where(kept, mx.exp(mx.where(kept, ratio, 0.0)), 0.0)
    strict = mx.tril(mx.ones((size, size)), -1)

    system = mx.eye(size) + beta * (k @ k.swapaxes(-1, -2)) * decay * strict
    inverse = cast(mx.array, _inverse_rule(system))
    grown = mx.exp(c)
    written = inverse @ (beta * v)
    removed = inverse @ (beta * grown * k)
    scores = (q @ k.swapaxes(-1, -2)) * decay
    queries = q * grown
    last = c[..., -1:, :]
    keys = (k * mx.exp(last - c)).swapaxes(-1, -2)
    final = mx.exp(last)

    state = mx.zeros((b, h, k.shape[-1], dv))
    out = []
    for n in range(t // size):
        u = written[:, :, n] - removed[:, :, n] @ state
        out.append(queries[:, :, n] @ state + scores[:, :, n] @ u)
        state = final[:, :, n] * state + keys[:, :, n] @ u
    return mx.stack(out, axis=2).reshape(b, h, t, dv).transpose(0, 2, 1, 3)


def gated_delta_update(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    a: mx.array,
    b: mx.array,
    A_log: mx.array,
    dt_bias: mx.array,
    state: mx.array | None = None,
    mask: mx.array | None = None,
    **settings: Any,
) -> tuple[mx.array, mx.array | None]:
    """Stands in for ``mlx_lm.models.gated_delta.gated_delta_update`` on whole sequences."""
    del settings
    if state is not None or mask is not None:
        raise ValueError("The chunked rule starts from a zero state and takes no mask.")
    repeats = v.shape[2] // q.shape[2]
    if repeats > 1:
        q, k = mx.repeat(q, repeats, axis=2), mx.repeat(k, repeats, axis=2)
    log_g = -mx.exp(A_log) * nn.softplus(a + dt_bias)
    return chunked(q, k, v, log_g, mx.sigmoid(b)), None
