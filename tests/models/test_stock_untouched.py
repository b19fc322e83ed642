"""Adapting a model changes neither it, nor its class, nor anything else of mlx-lm."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from speculate import speculation
from speculate.models.adapter import StockAdapter
from tests.support.cache_contents import (
    ALL,
    EVERY,
    adapted,
    assert_equal,
    batch,
    cold,
    feed,
    ids,
    model,
    stock,
)
from tests.support.stock_snapshot import FAMILIES, rows

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, str]:
    """Log-probabilities of a process without speculate and one with, and what that one says."""
    folder = tmp_path_factory.mktemp("untouched")
    running = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.support.on_cpu",
                "tests.support.stock_snapshot",
                str(folder / f"{mode}.safetensors"),
                mode,
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for mode in ("plain", "used")
    ]
    said = [process.communicate(timeout=150)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    plain, used = (mx.load(str(folder / f"{mode}.safetensors")) for mode in ("plain", "used"))
    return plain, used, said[1]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("which", ["same model", "another"])
def test_stock_decoding_is_what_it_is_without_speculate(
    family: str, which: str, processes: tuple[Any, Any, str]
) -> None:
    plain, used, _ = processes
    assert_equal(used[f"{family} {which}"], plain[f"{family} plain"], which)


def test_no_attribute_of_mlx_lm_has_changed(processes: tuple[Any, Any, str]) -> None:
    assert processes[2].split() == []


@pytest.mark.parametrize("family", ALL)
def test_adapter_and_stock_model_take_turns(family: str) -> None:
    """In the middle of a text of ours, mlx-lm decodes another with the same model."""
    whole: Any = stock(family)
    before = rows(whole)
    caches = cold(model(family), ids(9))[1]
    with speculation(caches) as window:
        feed(model(family), caches, ids(4, seed=2))
        assert_equal(rows(whole), before, "stock, in between")
        window.keep(2)
        expected = cold(model(family), [*ids(9), *ids(4, seed=2)[:2], 5])[0][-1]
        assert_equal(feed(model(family), caches, [5])[-1], expected, "ours, after that")


def test_two_models_of_one_class_share_nothing() -> None:
    first, second = (adapted(EVERY["qwen3_5"]()) for _ in range(2))
    other: Any = second.stock
    other.language_model.lm_head.weight = -other.language_model.lm_head.weight
    expected = cold(model("qwen3_5"), [*ids(9), *ids(3, seed=2)])[0]
    one, two = first.make_cache(), second.make_cache()
    with speculation(one) as window, speculation(two):
        for piece in (ids(9), ids(3, seed=2)):
            found, negative = feed(first, one, piece), feed(second, two, piece)
            assert_equal(found, -negative, "the other model")
        window.keep(12)
    assert [layer.length() for layer in two] == [0] * len(two)
    del second, two, other
    assert_equal(feed(first, one, [5])[-1], cold(first, [*ids(9), *ids(3, seed=2), 5])[0][-1], "")
    assert_equal(found, expected[-3:], "the first model")


@pytest.mark.parametrize("family", ["qwen3_5", "gpt_oss", "dense"])
def test_a_second_model_in_a_second_thread(family: str) -> None:
    text = ids(30)

    def run(result: list[mx.array], driven: StockAdapter) -> None:
        caches = driven.make_cache()
        feed(driven, caches, text[:9])
        done = 9
        with speculation(caches) as window:
            for _ in range(10):
                result.append(feed(driven, caches, [*text[done : done + 2], 1, 2, 3])[:2] + 0)
                window.keep(2)
                done += 2
        other: Any = driven.stock
        found = other(batch(text), cache=make_prompt_cache(other))
        result.append(found[0] + 0)
        mx.eval(result)

    results: list[list[mx.array]] = [[], [], []]
    models = [adapted(EVERY[family]()) for _ in results]
    pairs = list(zip(results, models, strict=True))
    threads = [threading.Thread(target=run, args=pair) for pair in pairs[1:]]
    for thread in threads:
        thread.start()
    run(*pairs[0])
    for thread in threads:
        thread.join()
    for result in results[1:]:
        for left, right in zip(result, results[0], strict=True):
            assert_equal(left, right, "in the other thread")
    expected = cold(model(family), text)[0]
    assert_equal(mx.concatenate(results[0][:10]), expected[9:29], "the text")
