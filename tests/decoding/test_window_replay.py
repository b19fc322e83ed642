"""Layers that record nothing: what is kept of a block is fed again in front of the next."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import falcon_h1
from mlx_lm.models.cache import CacheList, make_prompt_cache

from speculate import SpeculateError, speculation
from speculate.models.adapter import DenseAdapter
from tests.support import tiny
from tests.support.cache_contents import (
    assert_equal,
    assert_same,
    batch,
    cold,
    feed,
    holding,
    ids,
    model,
    stock,
)
from tests.support.caches_by_kind import consume, fresh, group
from tests.support.failing_layers import fused
from tests.support.model_contracts import Contracts

TEXT = ids(12, seed=1)


def test_what_is_kept_of_a_block_is_replayed() -> None:
    caches = cold(model("lfm2"), TEXT)[1]
    before = holding(caches)
    with speculation(caches) as window:
        feed(model("lfm2"), caches, ids(5, seed=2))
        window.keep(3)
        assert_same(holding(caches), before, "whole blocks only")
        owed = group(caches).to_replay()
        assert owed is not None
        assert owed[0].tolist() == list(ids(5, seed=2)[:3])
        assert window.fed() == 0
        out = model("lfm2").forward(batch([7, 8]), caches)
        assert out.logits.shape[1] == out.hidden.shape[1] == 2
        expected = model("lfm2").forward(
            batch([*TEXT, *ids(5, seed=2)[:3], 7, 8]), model("lfm2").make_cache()
        )
        assert_equal(out.logits, expected.logits[:, -2:], "logits of the block alone")
        assert_equal(out.hidden, expected.hidden[:, -2:], "hidden of the block alone")
        assert window.fed() == 2
        window.keep(2)
        assert group(caches).to_replay() is None
    fed = cold(model("lfm2"), [*TEXT, *ids(5, seed=2)[:3], 7, 8])[1]
    assert_same(holding(caches), holding(fed), "paid")


def test_tokens_to_replay_outlive_the_window() -> None:
    caches = cold(model("lfm2"), TEXT)[1]
    with speculation(caches) as window:
        feed(model("lfm2"), caches, ids(4, seed=2))
        window.keep(2)
        feed(model("lfm2"), caches, ids(3, seed=3))
    found = feed(model("lfm2"), caches, [7])
    whole, expected = cold(model("lfm2"), [*TEXT, *ids(4, seed=2)[:2], 7])
    assert found.shape[0] == 1
    assert_equal(found[-1], whole[-1], "next logits")
    assert_same(holding(caches), holding(expected), "paid")


def test_tokens_to_replay_add_up_over_rejections_and_are_replayed_at_once() -> None:
    rounds = [(5, 1), (5, 3), (2, 1), (1, 1), (8, 4), (8, 8)]
    Contracts(model("lfm2")).test_rejected_tokens_leave_no_trace([8, 0, 1], rounds)


def test_a_lent_list_does_not_lose_its_replay_in_silence() -> None:
    """mlx-lm's caches know no owed tokens: kept ones are in them, or there is an error."""
    caches = make_prompt_cache(stock("lfm2"))
    feed(model("lfm2"), caches, TEXT)
    try:
        with speculation(caches) as window:
            feed(model("lfm2"), caches, ids(4, seed=2))
            window.keep(2)
    except SpeculateError:
        return
    expected = cold(model("lfm2"), [*TEXT, *ids(4, seed=2)[:2]])[1]
    assert_same(holding(caches), holding(expected), "refilled")


def test_taking_over_what_is_to_be_replayed() -> None:
    """Somebody who feeds the tokens himself does not want them fed again."""
    caches = cold(model("lfm2"), TEXT)[1]
    with speculation(caches) as window:
        feed(model("lfm2"), caches, ids(4, seed=2))
        window.keep(2)
        owed = group(caches).take_replay()
        assert owed is not None
        feed(model("lfm2"), caches, [*ids(4, seed=2)[:2], 7])
        window.keep(3)
    expected = cold(model("lfm2"), [*TEXT, *ids(4, seed=2)[:2], 7])[1]
    assert_same(holding(caches), holding(expected), "fed once")


def test_tokens_to_replay_do_not_grow_without_bound() -> None:
    """A forward for five new tokens stays one, however many rounds were rejected."""
    driven, part = fused("lfm2", 0, "feed_forward")
    Contracts(driven).test_rejected_tokens_leave_no_trace([8], [(5, 1)] * 85)
    # Besides the cold prefill that all is compared with.
    assert max(part.widths[2:]) <= 64 + 5, f"the last block has {part.widths[-1]} rows"


def test_rejections_for_ever_beside_a_sliding_window() -> None:
    """The window takes back no more than it records, however much is owed."""
    kind, text = "hybrid without records", ids(100, seed=6)
    caches = fresh(kind, TEXT)
    with speculation(caches) as window:
        for token in text[:-1]:
            consume(kind, caches, [token, *ids(4, seed=7)])
            window.keep(1)
        # A whole block more pays what is owed.
        consume(kind, caches, text[-1:])
        window.keep(1)
    assert_same(holding(caches), holding(fresh(kind, [*TEXT, *text])), "after 100 rounds")


@pytest.mark.parametrize("kind", ["list", "list without records"])
def test_a_list_of_caches_rewinds_member_by_member(kind: str) -> None:
    for m in range(6):
        caches = fresh(kind, TEXT)
        with speculation(caches) as window:
            consume(kind, caches, ids(5, seed=2))
            window.keep(m)
            consume(kind, caches, [7])
            window.keep(1)
        expected = fresh(kind, [*TEXT, *ids(5, seed=2)[:m], 7])
        assert_same(holding(caches), holding(expected), f"kept {m}")


@pytest.mark.parametrize("kind", ["list", "list without records"])
@pytest.mark.parametrize("recording", [True, False])
def test_a_failure_between_the_members_of_a_list(kind: str, recording: bool) -> None:
    """The caller sees its own failure, and both members are as they were."""
    caches = fresh(kind, TEXT)
    before = holding(caches)
    (both,) = caches
    assert isinstance(both, CacheList)
    if recording:
        group(caches).start()
    with pytest.raises(ZeroDivisionError), group(caches).block(batch([1, 2, 3])):
        state: Any = both.caches[0]
        state[0], state[1] = mx.zeros((1, 3, 32)), mx.zeros((1, 32))
        state.advance(3)
        raise ZeroDivisionError
    assert_same(holding(caches), before, "failed after the first member")


def falcon() -> DenseAdapter:
    """Falcon-H1: Mamba2 and attention side by side in every layer, behind a `CacheList`."""
    args = falcon_h1.ModelArgs(
        attention_in_multiplier=1.0,
        head_dim=8,
        hidden_size=32,
        intermediate_size=48,
        mamba_d_conv=4,
        mamba_d_head=8,
        mamba_d_ssm=32,
        mamba_d_state=8,
        mamba_n_heads=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=3,
        tie_word_embeddings=False,
        vocab_size=tiny.VOCAB,
    )
    stock: Any = tiny.spread(falcon_h1.Model(args))
    return DenseAdapter(stock)


def test_a_model_whose_layers_have_two_caches_each() -> None:
    driven = falcon()
    caches = cold(driven, TEXT)[1]
    before = holding(caches)
    with speculation(caches) as window:
        for m in (0, 2, 0, 5):
            feed(driven, caches, ids(5, seed=2))
            window.keep(0)
            assert_same(holding(caches), before, f"round {m}")
        feed(driven, caches, ids(5, seed=2))
        window.keep(5)
    plain = cold(driven, TEXT)[1]
    feed(driven, plain, ids(5, seed=2))
    assert_same(holding(caches), holding(plain), "kept")
    stock: Any = [layer.release() for layer in caches]
    assert [type(layer) for layer in stock] == [CacheList] * 3
    found = driven.stock(batch([7]), cache=stock)[0]
    assert_equal(found, feed(driven, plain, [7]), "next logits, by the stock model")
