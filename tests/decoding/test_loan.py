"""A prompt cache while a generator works on it, and when it is the caller's again."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Final, cast

import pytest
from mlx_lm.models.cache import save_prompt_cache, trim_prompt_cache

from speculate import Decoder, Fixed, Off
from speculate.errors import CacheOnLoanError, CannotRewindError, OptionError
from speculate.protocols import Rollbackable
from tests.support import reference


def fixed(name: str, depth: int = 3) -> Fixed:
    return Fixed(reference.scripted(name, reference.PROMPT, 12, reference.always("each")), depth)


@pytest.mark.parametrize("name", [*reference.PROMISED, "lfm2"])
def test_the_same_list_comes_back_with_the_same_caches(name: str) -> None:
    caches = reference.stock_caches(name)
    objects = list(caches)
    reference.decode(name, fixed(name), count=12, caches=caches)
    assert all(a is b for a, b in zip(caches, objects, strict=True))


@pytest.mark.parametrize("name", reference.PROMISED)
def test_reading_a_cache_on_loan_says_so(name: str, tmp_path: Path) -> None:
    caches = reference.stock_caches(name)
    decoder = Decoder(reference.get(name).model, fixed(name))
    running = decoder.generate(reference.PROMPT, 12, caches)
    next(running)
    for layer, cache in enumerate(caches):
        for read in ("offset", "state", "keys", "cache"):
            with pytest.raises(CacheOnLoanError, match=f"layer {layer} .*settle"):
                getattr(cache, read)
    with pytest.raises(CacheOnLoanError):
        reference.feed(name, caches, [3])
    with pytest.raises(CacheOnLoanError):
        save_prompt_cache(str(tmp_path / "cache.safetensors"), caches)
    with pytest.raises(CacheOnLoanError):
        trim_prompt_cache(caches, 1)
    with pytest.raises(CacheOnLoanError, match="another running generator"):
        list(Decoder(reference.get(name).model, Off()).generate(reference.PROMPT, 3, caches))
    running.close()
    reference.check_holds(
        name, caches, [*reference.PROMPT, *reference.truth(name, reference.PROMPT, 1)]
    )


@pytest.mark.parametrize("name", reference.PROMISED)
def test_the_caller_holds_no_second_copy_during_the_run(name: str) -> None:
    caches = reference.stock_caches(name)
    reference.feed(name, caches, reference.PROMPT)
    objects = list(caches)
    running = Decoder(reference.get(name).model, fixed(name)).generate(reference.SECOND, 4, caches)
    next(running)
    assert [reference.content(cache) for cache in objects] == [[] for _ in objects]
    running.close()
    assert all(reference.content(cache) for cache in objects)


@pytest.mark.parametrize("name", [*reference.PROMISED, "lfm2"])
def test_a_cache_that_plain_decoding_left_is_taken_over(name: str) -> None:
    caches = reference.stock_caches(name)
    first = reference.stock_turn(name, caches, reference.PROMPT, 6)
    text = [*reference.PROMPT, *first, *reference.SECOND]
    proposer = reference.scripted(name, text, 12, reference.always(1))
    tokens = reference.decode(name, Fixed(proposer, 3), reference.SECOND, 12, caches)
    # Its own single steps rotate the window, and add up in another order.
    reference.check_tokens(name, text, tokens, within=1e-4 if name == "gpt_oss" else 0.0)


@pytest.mark.parametrize("name", [*reference.PROMISED, "lfm2"])
def test_plain_decoding_takes_over_what_is_left(name: str) -> None:
    caches = reference.stock_caches(name)
    tokens = reference.decode(name, fixed(name), count=11, caches=caches)
    second = reference.stock_turn(name, caches, reference.SECOND, 8)
    text = [*reference.PROMPT, *reference.ids_of(tokens), *reference.SECOND]
    assert second == reference.truth(name, text, 8)


@pytest.mark.parametrize("name", [*reference.PROMISED, "lfm2"])
def test_a_copy_of_a_settled_cache_is_a_cache_of_its_own(name: str) -> None:
    caches = reference.stock_caches(name)
    decoder = Decoder(reference.get(name).model, fixed(name))
    running = decoder.generate(reference.PROMPT, 12, caches)
    tokens = [next(running) for _ in range(3)]
    decoder.settle()
    twin = copy.deepcopy(caches)
    tokens += running
    text = [*reference.PROMPT, *reference.ids_of(tokens)]
    reference.check_holds(name, twin, text[:9])
    reference.check_holds(name, caches, text)
    second = reference.decode(name, Off(), reference.SECOND, 4, twin)
    reference.check_tokens(name, [*text[:9], *reference.SECOND], second)


@pytest.mark.parametrize("name", ["qwen3_5", "gpt_oss"])
def test_the_models_own_caches_may_be_handed_in(name: str) -> None:
    caches = cast("list[object]", reference.get(name).model.make_cache())
    tokens = reference.decode(name, fixed(name), count=10, caches=caches)
    assert not any(isinstance(cache, Rollbackable) for cache in caches)
    reference.check_holds(name, caches, [*reference.PROMPT, *reference.ids_of(tokens)])


def test_a_cache_that_cannot_be_rewound_is_refused_before_the_first_token() -> None:
    class Strange:
        """Some cache that nobody knows."""

    caches = reference.stock_caches("dense")
    strange = Strange()
    caches[1] = strange
    before = list(caches)
    decoder = Decoder(reference.get("dense").model, fixed("dense"))
    with pytest.raises(CannotRewindError, match=r"layer 1: .*Strange"):
        list(decoder.generate(reference.PROMPT, 3, caches))
    assert all(a is b for a, b in zip(caches, before, strict=True))
    assert reference.ids_of(decoder.generate(reference.PROMPT, 3)) == reference.truth(
        "dense", reference.PROMPT, 3
    )


def test_one_cache_for_two_layers_is_refused_before_the_first_token() -> None:
    caches = reference.stock_caches("dense")
    caches[2] = caches[0]
    kept = list(caches)
    decoder = Decoder(reference.get("dense").model, fixed("dense"))
    with pytest.raises(OptionError, match="layer 0 and layer 2 share one KVCache"):
        list(decoder.generate(reference.PROMPT, 3, caches))
    assert all(a is b for a, b in zip(caches, kept, strict=True))
    reference.same_content(caches[:2], reference.stock_caches("dense")[:2])


def test_a_list_of_another_model_is_refused_and_stays_as_it_was() -> None:
    caches = reference.stock_caches("dense")[:2]
    decoder = Decoder(reference.get("dense").model, fixed("dense"))
    with pytest.raises(OptionError, match="layers"):
        list(decoder.generate(reference.PROMPT, 3, caches))
    reference.same_content(caches, reference.stock_caches("dense")[:2])


@pytest.mark.parametrize("ending", ["end", "close", "lost"])
@pytest.mark.parametrize("name", ["qwen3_5", "gpt_oss"])
def test_a_decoder_keeps_no_text_alive(name: str, ending: str) -> None:
    decoder = Decoder(reference.get(name).model, fixed(name))
    caches = reference.stock_caches(name)
    refs: list[weakref.ref[object]] = [weakref.ref(cache) for cache in caches]
    running = decoder.generate(reference.PROMPT, 6, caches)
    token = next(running)
    refs.append(weakref.ref(token))
    if ending == "end":
        list(running)
    elif ending == "close":
        running.close()
    del running, caches, token
    gc.collect()
    assert [ref() for ref in refs] == [None] * len(refs)
    assert reference.ids_of(decoder.generate(reference.PROMPT, 6)) == reference.truth(
        name, reference.PROMPT, 6
    )


@pytest.mark.parametrize("taken", [1, 2, 4])
@pytest.mark.parametrize("name", [*reference.PROMISED, "lfm2"])
def test_the_garbage_collector_ends_a_run_as_close_does(name: str, taken: int) -> None:
    """It clears all weak references to what it found before it closes a generator."""
    caches = reference.stock_caches(name)
    running = Decoder(reference.get(name).model, fixed(name)).generate(reference.PROMPT, 12, caches)
    ids = [next(running).id for _ in range(taken)]
    circle: list[object] = [running]
    circle.append(circle)
    del running, circle
    gc.collect()
    reference.check_holds(name, caches, [*reference.PROMPT, *ids])


AT_EXIT: Final = """
import speculate as sp

model, tokenizer = sp.load()
strategy = sp.Fixed({proposer}, depth=3)
running = sp.Decoder(model, strategy).generate(tokenizer.encode("def f(x):"), 32)
first = next(running)


def circle():
    "Holds on to the names of this module, which hold on to it."
"""


@pytest.mark.parametrize(
    "proposer", ["sp.MTPChain()", "sp.PromptLookup()", "sp.DraftModel(sp.load_demo('draft')[0])"]
)
def test_a_run_that_is_open_at_exit_ends_without_a_word(proposer: str) -> None:
    command = [sys.executable, "-c", AT_EXIT.format(proposer=proposer)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
