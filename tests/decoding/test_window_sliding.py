"""Sliding windows: of any size, with sinks and without, wrapped or not, however prefilled."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, final

import mlx.core as mx
import pytest
from mlx_lm.models.cache import RotatingKVCache, make_prompt_cache

from speculate import SpeculativeModel
from speculate.models.adapter import StockAdapter
from speculate.protocols import Rollbackable
from speculate.testing.models import ROUNDS
from tests.support import tiny
from tests.support.cache_contents import (
    Caches,
    adapted,
    assert_close,
    assert_equal,
    assert_same,
    batch,
    cold,
    feed,
    holding,
    ids,
    model,
    refused,
    speculate_all,
    stock,
    trim_all,
)
from tests.support.model_contracts import Contracts
from tests.support.recording import PassingModel


@cache
def sliding(window: int) -> StockAdapter:
    return adapted(tiny.windowed(window=window))


@pytest.mark.parametrize("window", [1, 2, 3, 64])
def test_windows_of_any_size(window: int) -> None:
    contracts = Contracts(sliding(window), length=240)
    contracts.test_rejected_tokens_leave_no_trace([0])
    contracts.test_rejected_tokens_leave_no_trace([window - 1, 2 * window], ROUNDS[::4])


@pytest.mark.parametrize("window", [1, 2, 3])
def test_a_cut_leaves_no_trace_in_a_small_window(window: int) -> None:
    Contracts(sliding(window)).test_a_trimmed_block_leaves_no_trace(window + 1, [1, 5])


@pytest.mark.parametrize("window", [1, 2, 3])
def test_small_windows_are_stocks_windows(window: int) -> None:
    caches = sliding(window).make_cache()
    reference: list[Any] = make_prompt_cache(sliding(window).stock)  # type: ignore[arg-type]
    text, start = ids(40), 0
    for width in (1, 1, 4, 1, 2, 9, 1, 1, 1, 5):
        piece = text[start : start + width]
        expected = sliding(window).stock(batch(piece), cache=reference)[0]
        assert_close(feed(sliding(window), caches, piece), expected, f"at {start}")
        start += width


def test_windows_without_attention_sinks() -> None:
    """llama's sliding layers: a row that slid out of view is seen by nobody."""
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    driven = adapted(tiny.dense(layer_types=kinds, sliding_window=tiny.WINDOW))
    assert isinstance(driven.make_cache()[0], RotatingKVCache)
    Contracts(driven).test_rejected_tokens_leave_no_trace([6])
    Contracts(driven).test_a_trimmed_block_leaves_no_trace(tiny.WINDOW + 1, [4])


@pytest.mark.parametrize("family", ["gpt_oss", "qwen3_5"])
def test_prefill_in_chunks_of_every_size(family: str) -> None:
    text, last_token = ids(3 * tiny.WINDOW), ids(4, seed=9)
    whole = cold(model(family), text)[1]
    held, logits = holding(whole), feed(model(family), whole, last_token)
    for size in range(1, len(text)):
        caches = model(family).make_cache()
        for start in range(0, len(text), size):
            feed(model(family), caches, text[start : start + size])
        assert_same(holding(caches), held, f"chunks of {size}")
        assert_equal(feed(model(family), caches, last_token), logits, f"after chunks of {size}")


@pytest.mark.parametrize("prompt", [130, 200])
def test_prefill_longer_than_the_buffer(prompt: int) -> None:
    """One chunk that the whole buffer cannot take, alone and behind others, then rounds."""
    text = ids(prompt + 60)
    whole = holding(cold(model("gpt_oss"), text[:prompt])[1])
    for first in (0, 1, 20, prompt - 1):
        caches = model("gpt_oss").make_cache()
        for piece in (text[:first], text[first:prompt]):
            if piece:
                feed(model("gpt_oss"), caches, piece)
        assert_same(holding(caches), whole, f"after {first}, then {prompt - first}")
    contracts = Contracts(model("gpt_oss"), length=300)
    contracts.test_rejected_tokens_leave_no_trace([prompt - 1], ROUNDS[::3])


def test_a_block_as_long_as_the_recorded_window_can_be_rewound() -> None:
    for prompt in (12, 200):
        caches = cold(model("gpt_oss"), ids(prompt))[1]
        before = holding(caches)
        speculate_all(caches)
        feed(model("gpt_oss"), caches, ids(64, seed=3))
        trim_all(caches, 64)
        assert_same(holding(caches), before, f"prompt {prompt}")
        expected = cold(model("gpt_oss"), [*ids(prompt), 5])[0][-1]
        assert_equal(feed(model("gpt_oss"), caches, [5])[-1], expected, f"prompt {prompt}")


# Rows that mlx-lm's own window has lost.


def test_a_window_that_stock_wrapped_rewinds_as_far_as_its_rows() -> None:
    """12 tokens in a ring of 8: what was overwritten is refused, what was fed since is not."""
    driven, text = model("gpt_oss"), ids(14)
    wrapped = make_prompt_cache(stock("gpt_oss"))
    for token in text[:12]:
        feed(driven, wrapped, [token])
    caches = driven.adopt(wrapped)
    speculate_all(caches)
    before = holding(caches)
    assert all(refused(caches[0].trim, n) for n in (1, 2, 9))
    assert_same(holding(caches), before, "after refusals")
    feed(driven, caches, ids(4, seed=2))
    trim_all(caches, 4)
    assert_same(holding(caches), before, "after taking back")
    expected = cold(driven, text)[0][-2:]
    assert_close(feed(driven, caches, text[12:]), expected, "going on")


def test_all_layers_end_at_the_length_of_the_text() -> None:
    """A rejection at the moment when prompt and drafts fill the window."""
    text = ids(40)
    for prompt in range(3, 10):
        for wrong in range(4):
            caches = cold(model("gpt_oss"), text[:prompt])[1]
            speculate_all(caches)
            drafts = [*text[prompt : prompt + 1 + wrong], *ids(4 - wrong, seed=8)]
            feed(model("gpt_oss"), caches, drafts)
            trim_all(caches, 4 - wrong)
            assert [layer.length() for layer in caches] == [prompt + 1 + wrong] * len(caches)
            expected = cold(model("gpt_oss"), text[: prompt + 2 + wrong])[0][-1]
            found = feed(model("gpt_oss"), caches, text[prompt + 1 + wrong : prompt + 2 + wrong])
            assert_equal(found[-1], expected, f"prompt {prompt}, wrong at {wrong}")


# With sinks: rows at the start of the text that never slide out of view.


def with_sinks(size: int, prompt: int, step: int = 2048) -> Caches:
    """Qwen3's; llama's `make_cache` of mlx-lm takes no size."""
    caches = model("qwen3").make_cache(size)
    assert all(isinstance(layer, RotatingKVCache) and layer.keep == 4 for layer in caches)
    for start in range(0, prompt, step):
        feed(model("qwen3"), caches, ids(300)[start : min(start + step, prompt)])
    return caches


@final
class Sized(PassingModel):
    """A model whose caches keep so many rows, the first four always."""

    def __init__(self, model: SpeculativeModel, size: int) -> None:
        super().__init__(model)
        self._size = size

    def make_cache(
        self, max_kv_size: int | None = None, *, position: int = 0
    ) -> list[Rollbackable]:
        return self.inner.make_cache(self._size, position=position)


@pytest.mark.parametrize(
    ("size", "prompt"), [(5, 1), (5, 9), (6, 4), (6, 24), (8, 1), (8, 4), (8, 9), (8, 24)]
)
def test_blocks_see_the_sinks_as_single_steps_do(size: int, prompt: int) -> None:
    """The oracle is stepping after the same prefill: mlx-lm's mask hides sinks from blocks."""
    sized = Sized(model("qwen3"), size)

    def stepped(text: Sequence[int]) -> mx.array:
        caches = sized.make_cache()
        pieces = [text[: prompt - 1], *([token] for token in text[prompt - 1 :])]
        return mx.concatenate([feed(sized, caches, piece) for piece in pieces if piece])

    Contracts(sized, length=130, oracle=stepped).test_rejected_tokens_leave_no_trace([prompt - 1])


def test_sinks_stay_when_the_buffer_fills_up() -> None:
    text, stepped = ids(300), with_sinks(tiny.WINDOW, 9)
    caches = with_sinks(tiny.WINDOW, 9)
    speculate_all(caches)
    for start in range(9, 250, 5):
        feed(model("qwen3"), caches, [*text[start : start + 5], 1, 2, 3])
        trim_all(caches, 3)
        for token in text[start : start + 5]:
            feed(model("qwen3"), stepped, [token])
    assert_same(holding(caches), holding(stepped), "after 250 tokens")


@pytest.mark.parametrize("step", [1, 3, 7, 2048])
def test_prefill_with_sinks_is_stocks(step: int) -> None:
    for prompt in (3, 8, 30):
        reference: list[Any] = [RotatingKVCache(tiny.WINDOW, keep=4) for _ in range(2)]
        for start in range(0, prompt, step):
            piece = ids(300)[start : min(start + step, prompt)]
            stock("qwen3")(batch(piece), cache=reference)
        caches = with_sinks(tiny.WINDOW, prompt, step)
        for token in ids(12, seed=6):
            expected = stock("qwen3")(batch([token]), cache=reference)[0]
            assert_close(feed(model("qwen3"), caches, [token]), expected, f"prompt {prompt}")
