"""An adapter's forward is the stock model's, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache

from speculate.errors import UnsupportedModelError
from tests.support import tiny
from tests.support.cache_contents import (
    ALL,
    EVERY,
    adapted,
    assert_equal,
    batch,
    feed,
    ids,
    model,
    stock,
)

WIDTHS = (7, 1, 2, 3, 9, 4, 1, 1, 5, 6, 8)


def pieces(widths: Sequence[int] = WIDTHS) -> list[tuple[int, ...]]:
    text, cuts = ids(sum(widths), seed=4), [sum(widths[:n]) for n in range(len(widths) + 1)]
    return [text[start:stop] for start, stop in pairwise(cuts)]


def compare(stock_model: Any, *, own_caches: bool) -> None:
    """Feed the same pieces to a stock model and to its adapter."""
    driven = adapted(stock_model)
    reference: list[Any] = make_prompt_cache(stock_model)
    caches = driven.make_cache() if own_caches else make_prompt_cache(stock_model)
    length = 0
    for piece in pieces():
        expected = stock_model(batch(piece), cache=reference)[0]
        found = feed(driven, caches, piece)
        length += len(piece)
        assert_equal(found, expected, f"{len(piece)} tokens, up to {length}")


@pytest.mark.parametrize("tied", [True, False])
def test_tied_and_untied_outputs(tied: bool) -> None:
    compare(tiny.hybrid(tie_word_embeddings=tied), own_caches=True)
    compare(tiny.dense(tie_word_embeddings=tied), own_caches=True)


@pytest.mark.parametrize("build", [tiny.dense, tiny.hybrid])
def test_quantised_models(build: Any) -> None:
    quantised = build(intermediate_size=64, tie_word_embeddings=True)
    nn.quantize(quantised, group_size=32, bits=4)
    assert isinstance(quantised.layers[0].mlp.up_proj, nn.QuantizedLinear)
    compare(quantised, own_caches=True)
    compare(quantised, own_caches=False)


@pytest.mark.parametrize("build", [tiny.dense, tiny.hybrid])
def test_half_precision_keeps_its_dtype(build: Any) -> None:
    half = build()
    half.set_dtype(mx.bfloat16)
    compare(half, own_caches=True)
    assert adapted(half)(batch([3])).dtype == mx.bfloat16


@pytest.mark.parametrize("family", ALL)
def test_hidden_is_the_trunks_output_after_its_norm(family: str) -> None:
    whole = stock(family)
    trunk = getattr(whole, "language_model", whole)
    out = model(family).forward(batch(ids(9)), model(family).make_cache())
    assert_equal(out.hidden, trunk.model(batch(ids(9)), cache=make_prompt_cache(whole)), "hidden")
    head = getattr(trunk, "lm_head", trunk.model.embed_tokens.as_linear)
    assert_equal(out.logits, head(out.hidden), "logits of hidden")


@pytest.mark.parametrize("family", ALL)
def test_an_adapter_can_be_called_like_the_stock_model(family: str) -> None:
    caches = model(family).make_cache()
    assert_equal(model(family)(batch(ids(5)), cache=caches), stock(family)(batch(ids(5))), "5")
    assert [layer.length() for layer in caches] == [5] * len(stock(family).layers)
    assert_equal(model(family)(batch(ids(5))), stock(family)(batch(ids(5))), "without a cache")
    assert len(model(family).layers) == len(stock(family).layers)


@pytest.mark.parametrize("family", ALL)
@pytest.mark.parametrize("step", [3, 2048])
def test_mlx_lms_own_loop_runs_on_an_adapter(family: str, step: int) -> None:
    def run(driven: Any, count: int) -> list[tuple[Any, mx.array]]:
        prompt = mx.array(ids(6))
        return list(generate_step(prompt, driven, max_tokens=count, prefill_step_size=step))

    # The window of 8 is not full before the third token.
    count = 2 if family == "gpt_oss" else 12
    found, expected = run(model(family), count), run(stock(family), count)
    assert [token for token, _ in found] == [token for token, _ in expected]
    for (_, left), (_, right) in zip(found, expected, strict=True):
        assert_equal(left, right, "log-probabilities")


def test_a_model_without_an_adapter_is_named() -> None:
    unknown = type("Model", (nn.Module,), {"__module__": "mlx_lm.models.brand_new"})()
    with pytest.raises(UnsupportedModelError, match=r"'brand_new'.*qwen3_next"):
        adapted(unknown)


def test_a_pipelined_model_is_refused() -> None:
    for build in (tiny.hybrid, tiny.next_moe):
        piped: Any = build()
        getattr(piped, "language_model", piped).model.pipeline_size = 2
        driven = adapted(piped)
        with pytest.raises(UnsupportedModelError, match="2 pipeline stages"):
            driven.forward(batch([1]), driven.make_cache())


def test_every_family_has_an_adapter() -> None:
    assert {type(model(family)).__name__ for family in EVERY} == {
        "DenseAdapter",
        "Qwen35Adapter",
        "Qwen3NextAdapter",
    }
