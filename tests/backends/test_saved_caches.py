"""What is handed back can be saved, and used by a process that has only mlx-lm."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    KVCache,
    load_prompt_cache,
    save_prompt_cache,
)

from speculate import speculation
from speculate.backends.adopt import adopt
from tests.support.cache_contents import (
    ALL,
    assert_close,
    assert_equal,
    assert_same,
    cold,
    feed,
    holding,
    ids,
    model,
)
from tests.support.stock_process import NEXT

ROOT = Path(__file__).parents[2]
TEXT = ids(22, seed=1)


def returned(family: str) -> list[object]:
    """Caches with `TEXT`, after rounds that rejected drafts and kept some."""
    caches = cold(model(family), TEXT[:10])[1]
    with speculation(caches) as window:
        feed(model(family), caches, [*TEXT[10:13], 1, 2])
        window.keep(3)
        feed(model(family), caches, [*TEXT[13:15], 3])
        window.keep(2)
        feed(model(family), caches, TEXT[15:])
        window.keep(7)
    return [layer.release() for layer in caches]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Saved caches of every family, and what the other process made of them."""
    folder = tmp_path_factory.mktemp("saved")
    for family in ALL:
        save_prompt_cache(str(folder / f"{family}.safetensors"), returned(family))
    module = "tests.support.stock_process"
    command = [sys.executable, "-m", "tests.support.on_cpu", module, str(folder), *ALL]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120)
    return folder


@pytest.mark.parametrize("family", ALL)
def test_another_process_goes_on_from_a_saved_cache(family: str, folder: Path) -> None:
    loaded = mx.load(str(folder / f"{family}.logits.safetensors"))
    assert isinstance(loaded, dict)
    expected = cold(model(family), [*TEXT, *NEXT])[0][-len(NEXT) :]
    compare = assert_close if family == "gpt_oss" else assert_equal
    compare(loaded["rows"], expected, "logits in the other process")


@pytest.mark.parametrize("family", ALL)
def test_a_cache_that_another_process_saved_is_adopted(family: str, folder: Path) -> None:
    caches = model(family).adopt(load_prompt_cache(str(folder / f"{family}.later.safetensors")))
    text = [*TEXT, *NEXT]
    if family != "gpt_oss":
        assert_same(holding(caches), holding(cold(model(family), text)[1]), "loaded")
    with speculation(caches) as window:
        feed(model(family), caches, ids(4, seed=2))
        window.keep(0)
        found = feed(model(family), caches, [9])[-1]
    compare = assert_close if family == "gpt_oss" else assert_equal
    compare(found, cold(model(family), [*text, 9])[0][-1], "next logits")


@pytest.mark.parametrize("family", ["dense", "gpt_oss", "qwen3_5", "lfm2"])
def test_empty_caches_can_be_returned(family: str) -> None:
    caches = [layer.release() for layer in model(family).make_cache()]
    assert_equal(
        feed(model(family), caches, TEXT[:5]), cold(model(family), TEXT[:5])[0], "from nothing"
    )


# Rewindable caches are not saved: mlx-lm could not load them.


@pytest.mark.parametrize("family", [*ALL, "cache list"])
def test_saving_rewindable_caches_is_refused_and_says_what_to_do(
    family: str, tmp_path: Path
) -> None:
    file = tmp_path / "prompt.safetensors"
    caches: list[Any] = (
        adopt([CacheList(ArraysCache(2), KVCache())])
        if family == "cache list"
        else cold(model(family), TEXT)[1]
    )
    before = holding(caches)
    with pytest.raises(ValueError, match=r"Leave the speculation\(\) block .*release\(\)"):
        save_prompt_cache(str(file), caches)
    assert not file.exists()
    # As mlx-lm's loops do after each chunk of a prompt.
    mx.eval([cache.state for cache in caches])
    assert_same(holding(copy.deepcopy(caches)), before, "a copy")
    assert_same(holding(caches), before, "saving")


def test_inside_of_a_window_over_mlx_lms_caches_too(tmp_path: Path) -> None:
    """Where a change of types goes unnoticed."""
    file = str(tmp_path / "prompt.safetensors")
    caches = returned("dense")
    with speculation(caches) as window:
        feed(model("dense"), caches, [3])
        window.keep(1)
        with pytest.raises(ValueError, match=r"Leave the speculation\(\) block"):
            save_prompt_cache(file, caches)
    save_prompt_cache(file, caches)
    found = feed(model("dense"), load_prompt_cache(file), [9])[-1]
    assert_equal(found, cold(model("dense"), [*TEXT, 3, 9])[0][-1], "next logits")
