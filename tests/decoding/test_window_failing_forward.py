"""A forward that fails half way leaves every layer as it was."""

from __future__ import annotations

import pytest

from speculate import speculation
from speculate.models.adapter import StockAdapter
from tests.support.cache_contents import (
    ALL,
    FAMILIES,
    Caches,
    assert_equal,
    assert_same,
    cold,
    feed,
    holding,
    ids,
    model,
    speculate_all,
    stock,
)
from tests.support.failing_layers import (
    FEED_FORWARD,
    Fuse,
    PartFailedError,
    check_failed_forward,
    fused,
)

TEXT = ids(12, seed=1)
INSIDE = [
    ("qwen3_5", 0, "linear_attn.in_proj_b"),
    ("qwen3_5", 2, "linear_attn.conv1d"),
    ("qwen3_5", 2, "linear_attn.norm"),
    ("qwen3_5", 2, "linear_attn.out_proj"),
    ("qwen3_5", 3, "self_attn.q_proj"),
    ("qwen3_5", 3, "self_attn.o_proj"),
    ("qwen3_next", 2, "linear_attn.in_proj_ba"),
    ("gpt_oss", 2, "self_attn.o_proj"),
    ("lfm2", 2, "conv.out_proj"),
    ("lfm2", 3, "self_attn.out_proj"),
]
"""Before, between and after what a layer writes into its cache."""
AFTER = [(family, 1, FEED_FORWARD.get(family, "mlp")) for family in ALL]
AFTER += [(family, 0, "mlp") for family in FAMILIES]
AFTER += [(family, len(stock(family).layers) - 1, "mlp") for family in FAMILIES]


def fails(driven: StockAdapter, fuse: Fuse, caches: Caches, width: int = 3) -> None:
    fuse.blown = True
    with pytest.raises(PartFailedError):
        feed(driven, caches, ids(width, seed=width))
    fuse.blown = False


@pytest.mark.parametrize(("family", "layer", "part"), [*INSIDE, *AFTER])
def test_in_a_window(family: str, layer: int, part: str) -> None:
    check_failed_forward(family, layer, part)


@pytest.mark.parametrize(("family", "layer", "part"), [*INSIDE, *AFTER])
def test_outside_of_a_window(family: str, layer: int, part: str) -> None:
    check_failed_forward(family, layer, part, window=False)


@pytest.mark.parametrize("family", ["qwen3_5", "gpt_oss", "lfm2"])
def test_a_block_that_failed_is_no_part_of_the_window(family: str) -> None:
    driven, fuse = fused(family, 1, FEED_FORWARD.get(family, "mlp"))
    caches = cold(driven, TEXT)[1]
    with speculation(caches) as window:
        fails(driven, fuse, caches)
        feed(driven, caches, ids(4, seed=2))
        fails(driven, fuse, caches)
        assert window.fed() == 4
        feed(driven, caches, ids(2, seed=3))
        window.keep(5)
        found = feed(driven, caches, [7])[-1]
    text = [*TEXT, *ids(4, seed=2), ids(2, seed=3)[0], 7]
    assert_equal(found, cold(model(family), text)[0][-1], "next logits")


@pytest.mark.parametrize("family", ["qwen3_5", "gpt_oss", "lfm2"])
def test_while_recording_without_a_window(family: str) -> None:
    driven, fuse = fused(family, 1, FEED_FORWARD.get(family, "mlp"))
    caches = cold(driven, TEXT)[1]
    speculate_all(caches)
    feed(driven, caches, ids(4, seed=2))
    before = holding(caches)
    fails(driven, fuse, caches)
    assert_same(holding(caches), before, "the block failed")
    for layer in caches:
        layer.trim(4)
    assert_same(holding(caches), holding(cold(driven, TEXT)[1]), "the block before, taken back")


@pytest.mark.parametrize("family", ["qwen3_5", "gpt_oss", "lfm2"])
def test_on_empty_caches(family: str) -> None:
    driven, fuse = fused(family, 2, FEED_FORWARD.get(family, "mlp"))
    caches = driven.make_cache()
    with speculation(caches) as window:
        fails(driven, fuse, caches)
        feed(driven, caches, TEXT)
        window.keep(len(TEXT))
    assert_same(holding(caches), holding(cold(model(family), TEXT)[1]), "after all")


def test_tokens_to_replay_are_still_to_replay() -> None:
    driven, fuse = fused("lfm2", 2, "feed_forward")
    caches = cold(driven, TEXT)[1]
    with speculation(caches) as window:
        feed(driven, caches, ids(4, seed=2))
        window.keep(2)
        before = holding(caches)
        for width in (1, 3):
            fails(driven, fuse, caches, width)
            assert_same(holding(caches), before, f"a block of {width} failed")
            assert window.fed() == 0
        found = feed(driven, caches, [7])[-1]
        window.keep(1)
    text = [*TEXT, *ids(4, seed=2)[:2], 7]
    assert_equal(found, cold(model("lfm2"), text)[0][-1], "next logits")
    assert_same(holding(caches), holding(cold(model("lfm2"), text)[1]), "nothing owed")


def test_a_block_longer_than_the_recorded_window() -> None:
    """The caller sees the failure, and not that of taking back."""
    driven, fuse = fused("gpt_oss", 3, "mlp")
    caches = cold(driven, ids(200))[1]
    before = holding(caches)
    with speculation(caches):
        fails(driven, fuse, caches, 90)
        assert_same(holding(caches), before, "a block of 90 failed")
