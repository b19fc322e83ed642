"""What a rejected tail leaves behind: nothing, bit for bit."""

from __future__ import annotations

import pytest

from speculate import speculation
from tests.support import tiny
from tests.support.cache_contents import (
    CUT_ANYWHERE,
    FAMILIES,
    HYBRIDS,
    adapted,
    assert_equal,
    assert_same,
    cold,
    feed,
    holding,
    ids,
    model,
    speculate_all,
    trim_all,
)
from tests.support.model_contracts import Contracts


@pytest.mark.parametrize("family", CUT_ANYWHERE)
def test_every_width_cut_to_every_prefix_past_a_wrap(family: str) -> None:
    """What the caches hold, after blocks that have nothing but their prefix in common."""
    text, shared = ids(tiny.WINDOW + 4, seed=1), ids(9, seed=2)
    expected = [holding(cold(model(family), [*text, *shared[:m]])[1]) for m in range(10)]
    caches = cold(model(family), text)[1]
    speculate_all(caches)
    for width in (1, 4, 9):
        for m in range(width + 1):
            feed(model(family), caches, [*shared[:m], *ids(width - m, seed=91)])
            trim_all(caches, width - m)
            assert_same(holding(caches), expected[m], f"width {width} cut to {m}")
            trim_all(caches, m)
    assert_same(holding(caches), expected[0], "taken back to the prompt")


@pytest.mark.parametrize("prompt", [1, tiny.WINDOW - 3, tiny.WINDOW])
def test_cuts_across_a_wrap(prompt: int) -> None:
    Contracts(model("gpt_oss")).test_a_trimmed_block_leaves_no_trace(prompt, [5, 9])


@pytest.mark.parametrize("family", HYBRIDS)
def test_cuts_to_less_than_a_conv_window(family: str) -> None:
    Contracts(model(family)).test_a_trimmed_block_leaves_no_trace(1, [1, 4])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_rewind_goes_through_several_blocks(family: str) -> None:
    text, blocks = ids(12, seed=1), [ids(n, seed=n) for n in (3, 1, 4, 1, 5)]
    fed = [token for block in blocks for token in block]
    for n in (1, 5, 6, 8, 11, 13, 14):
        caches = cold(model(family), text)[1]
        speculate_all(caches)
        for block in blocks:
            feed(model(family), caches, block)
        trim_all(caches, n)
        fresh = cold(model(family), [*text, *fed[: len(fed) - n]])[1]
        assert_same(holding(caches), holding(fresh), f"took back {n}")


@pytest.mark.parametrize("family", CUT_ANYWHERE)
def test_a_full_rewind_right_after_prefill(family: str) -> None:
    for prompt in (0, 1, 12):
        caches = model(family).make_cache()
        for start in range(0, prompt, 5):
            feed(model(family), caches, ids(12, seed=1)[start : min(start + 5, prompt)])
        before = holding(caches)
        speculate_all(caches)
        feed(model(family), caches, ids(5, seed=2))
        trim_all(caches, 5)
        if prompt:
            assert_same(holding(caches), before, f"prompt {prompt}")
        else:
            assert [layer.length() for layer in caches] == [0] * len(caches)
        found = feed(model(family), caches, ids(3, seed=3))
        expected = cold(model(family), [*ids(12, seed=1)[:prompt], *ids(3, seed=3)])[0][-3:]
        assert_equal(found, expected, f"prompt {prompt}, fed again")


@pytest.mark.parametrize("family", [*HYBRIDS, "gpt_oss", "lfm2"])
def test_a_block_longer_than_the_recorded_window_is_cut(family: str) -> None:
    block, last_token = ids(70, seed=2), [*ids(1, seed=3)]
    for m in (6, 37, 64, 69):
        caches = cold(model(family), ids(12, seed=1))[1]
        with speculation(caches) as window:
            feed(model(family), caches, block)
            window.keep(m)
            found = feed(model(family), caches, last_token)[-1]
            window.keep(1)
        whole, fresh = cold(model(family), [*ids(12, seed=1), *block[:m], *last_token])
        assert_equal(found, whole[-1], f"kept {m}")
        assert_same(holding(caches), holding(fresh), f"kept {m}")


@pytest.mark.parametrize("build", [tiny.dense, tiny.hybrid])
def test_quantised_rows_are_rewound_exactly(build: type) -> None:
    """Of a model whose attention caches are quantised as mlx-lm does it."""
    from mlx_lm.generate import maybe_quantize_kv_cache
    from mlx_lm.models.cache import make_prompt_cache

    driven = adapted(build(head_dim=32))

    def prefilled(tokens: tuple[int, ...]) -> list[object]:
        stock = make_prompt_cache(driven.stock)  # type: ignore[arg-type]
        maybe_quantize_kv_cache(stock, 0, 32, 8)
        feed(driven, stock, tokens)
        return stock

    text, block, last_token = ids(12, seed=1), ids(5, seed=2), ids(1, seed=3)
    for m in range(6):
        caches, fresh = driven.adopt(prefilled(text)), driven.adopt(prefilled(text))
        assert "QuantizedKVCache" in " ".join(type(layer).__name__ for layer in caches)
        speculate_all(caches)
        feed(driven, caches, block)
        trim_all(caches, 5 - m)
        for token in block[:m]:
            feed(driven, fresh, [token])
        assert_same(holding(caches), holding(fresh), f"cut to {m}")
        assert_equal(
            feed(driven, caches, last_token), feed(driven, fresh, last_token), f"cut to {m}"
        )
