"""Grown models compute what the bundled ones do."""

from __future__ import annotations

import mlx.core as mx
import pytest
from mlx_lm.models import qwen3_5

import speculate as sp
from benchmarks import grow
from benchmarks.traces import Record, speak
from benchmarks.workloads import Piece, Request
from speculate import SpeculativeModel
from speculate.loading import demo_prompt, stock_of

TOKENS = 64


@pytest.fixture(scope="module")
def models() -> tuple[SpeculativeModel, SpeculativeModel]:
    return sp.load_demo("hybrid")[0], grow.grown_hybrid(hidden=512, layers=12)[0]


@pytest.fixture(scope="module")
def request_() -> Request:
    prompt = sp.load_demo("hybrid")[1].encode(demo_prompt())
    return Request(tuple(prompt), (Piece(free=TOKENS),), TOKENS)


def test_a_grown_hybrid_is_larger(models: tuple[SpeculativeModel, SpeculativeModel]) -> None:
    small, large = models
    stock = stock_of(large)
    assert isinstance(stock, qwen3_5.Model)
    assert len(stock.layers) == 12
    assert [layer.is_linear for layer in stock.layers] == [True, True, True, False] * 3
    assert grow.parameter_count(large) > 10 * grow.parameter_count(small)


def test_logits_and_hidden_states_are_close(
    models: tuple[SpeculativeModel, SpeculativeModel], request_: Request
) -> None:
    tokens = mx.array([list(request_.prompt)])
    small, large = (model.forward(tokens, model.make_cache()) for model in models)
    width = small.hidden.shape[-1]
    assert mx.abs(small.logits - large.logits).max() < 1e-5 * mx.abs(small.logits).max()
    assert mx.abs(small.hidden - large.hidden[..., :width]).max() < 1e-4
    assert not large.hidden[..., width:].any()


def test_text_and_drafts_of_the_head_are_the_same(
    models: tuple[SpeculativeModel, SpeculativeModel], request_: Request
) -> None:
    records = [Record(sp.MTPChain()) for _ in models]
    texts = [speak(m, request_, [r]) for m, r in zip(models, records, strict=True)]
    assert texts[0] == texts[1]
    assert records[0].drafts == records[1].drafts
    found = [chance for record in records for row in record.confidence for chance in row]
    half = len(found) // 2
    assert found[:half] == pytest.approx(found[half:], abs=0.002)


@pytest.mark.parametrize("size", [(384, 3), (1024, 2)])
def test_a_grown_draft_model_gives_the_same_logits(
    size: tuple[int, int], request_: Request
) -> None:
    tokens = mx.array([list(request_.prompt)])
    small, large = sp.load_demo("draft")[0], grow.grown_draft(*size)[0]
    outs = [model.forward(tokens, model.make_cache()).logits for model in (small, large)]
    assert mx.abs(outs[0] - outs[1]).max() < 1e-5 * mx.abs(outs[0]).max()
    assert grow.parameter_count(large) > 8 * grow.parameter_count(small)
