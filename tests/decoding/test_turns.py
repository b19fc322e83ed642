"""Second and third turns on the returned cache, and the cache on disk."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Final

import mlx.core as mx
import pytest
from mlx_lm.models.cache import load_prompt_cache, save_prompt_cache

from speculate import Decoder, DraftModel, Fixed
from speculate.testing import ScriptedProposer
from tests.support import reference, tiny
from tests.support.recording import WatchedProposer

ROOT: Final = Path(__file__).parents[2]
NAMES: Final = (*reference.PROMISED, "lfm2")


@pytest.mark.parametrize("fresh", [False, True], ids=["same decoder", "fresh decoder"])
@pytest.mark.parametrize(
    "case", reference.sampled(product(NAMES, (None, 0, "each"), (1, 4, 5, 9)), 6)
)
def test_three_turns_equal_cold_runs(case: tuple[str, object, int], fresh: bool) -> None:
    name, wrong, count = case
    caches = reference.stock_caches(name)
    text: list[int] = []
    # What a fresh decoder's proposer cannot know it gets wrong; that is all.
    script = list(reference.PROMPT)
    for turn in (reference.PROMPT, reference.SECOND, reference.THIRD):
        script = [*text, *turn, *reference.truth(name, [*text, *turn], count)]
        proposer = ScriptedProposer(script, reference.always(wrong), vocab_size=tiny.VOCAB)
        if fresh or not text:
            decoder = Decoder(reference.get(name).model, Fixed(proposer, 4))
        tokens = list(decoder.generate(turn, count, caches))
        text += turn
        reference.check_tokens(name, text, tokens)
        text += reference.ids_of(tokens)
        reference.check_holds(name, caches, text)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_decoder_goes_on_with_its_proposers_where_they_are(name: str) -> None:
    watched = WatchedProposer(DraftModel(reference.get(name).model))
    decoder = Decoder(reference.get(name).model, Fixed(watched, 3))
    caches = reference.stock_caches(name)
    first = list(decoder.generate(reference.PROMPT, 6, caches))
    list(decoder.generate(reference.SECOND, 6, caches))
    assert watched.begins == [0]
    length = len(reference.PROMPT) + 6 + len(reference.SECOND) + 6
    assert watched.position() == length
    # The model drafts for itself: had it missed something, it would be wrong.
    assert decoder.stats.accepted_tokens == decoder.stats.draft_tokens > 0
    # Another list is another text, and so is the same list with something else in it.
    again = list(decoder.generate(reference.PROMPT, 6))
    assert reference.ids_of(again) == reference.ids_of(first)
    assert watched.begins == [0, 0]


def test_a_list_that_was_changed_between_turns_restarts_the_proposers() -> None:
    name = "qwen3_5"
    watched = WatchedProposer(DraftModel(reference.get(name).model))
    decoder = Decoder(reference.get(name).model, Fixed(watched, 3))
    caches = reference.stock_caches(name)
    first = reference.ids_of(decoder.generate(reference.PROMPT, 6, caches))
    reference.feed(name, caches, [7, 8])
    tokens = list(decoder.generate(reference.SECOND, 6, caches))
    reference.check_tokens(name, [*reference.PROMPT, *first, 7, 8, *reference.SECOND], tokens)
    assert watched.begins == [0, 14]


@pytest.mark.parametrize("name", NAMES)
def test_two_continuations_of_one_prefix_are_each_as_cold(name: str, tmp_path: Path) -> None:
    caches = reference.stock_caches(name)
    proposer = DraftModel(reference.get(name).model)
    decoder = Decoder(reference.get(name).model, Fixed(proposer, 3))
    first = reference.ids_of(decoder.generate(reference.PROMPT, 5, caches))
    path = str(tmp_path / "prefix.safetensors")
    save_prompt_cache(path, caches)
    for turn in (reference.SECOND, reference.THIRD, reference.SECOND):
        branch = load_prompt_cache(path)
        tokens = list(decoder.generate(turn, 6, branch))
        text = [*reference.PROMPT, *first, *turn]
        reference.check_tokens(name, text, tokens)
        reference.check_holds(name, branch, [*text, *reference.ids_of(tokens)])


READ_BY_MLX_LM_ALONE: Final = """
import sys
import mlx.core as mx
mx.set_default_device(mx.cpu)
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import load_prompt_cache
from tests.support import tiny

folder, *names = sys.argv[1:]
for name in names:
    model = {**tiny.FAMILIES, **tiny.MORE, **tiny.FOLDED}[name]()
    cache = load_prompt_cache(f"{folder}/{name}.safetensors")
    steps = generate_step(mx.array([33, 2, 18]), model, max_tokens=5, prompt_cache=cache)
    print(name, *[int(token) for token, _ in steps])
assert not any(module.startswith("speculate") for module in sys.modules)
"""


def test_a_process_with_mlx_lm_alone_goes_on_from_a_saved_cache(tmp_path: Path) -> None:
    expected = {}
    for name in NAMES:
        caches = reference.stock_caches(name)
        proposer = reference.scripted(name, reference.PROMPT, 13, reference.always("each"))
        decoder = Decoder(reference.get(name).model, Fixed(proposer, 4))
        running = decoder.generate(reference.PROMPT, 20, caches)
        # Some are saved in the middle of a run, and some at its end.
        tokens = [next(running).id for _ in range(13)]
        decoder.settle() if name in {"qwen3_5", "gpt_oss"} else running.close()
        save_prompt_cache(str(tmp_path / f"{name}.safetensors"), caches)
        expected[name] = reference.truth(name, [*reference.PROMPT, *tokens, *reference.SECOND], 5)
        running.close()
    found = subprocess.run(
        [sys.executable, "-c", READ_BY_MLX_LM_ALONE, str(tmp_path), *NAMES],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
    ).stdout.splitlines()
    assert {line.split()[0]: [int(x) for x in line.split()[1:]] for line in found} == expected


@pytest.mark.parametrize("name", ["dense", "gpt_oss", "qwen3_5"])
def test_a_cache_loaded_from_disk_can_be_handed_in(name: str, tmp_path: Path) -> None:
    path = str(tmp_path / "cache.safetensors")
    caches = reference.stock_caches(name)
    reference.feed(name, caches, reference.PROMPT)
    save_prompt_cache(path, caches)
    loaded = load_prompt_cache(path)
    proposer = DraftModel(reference.get("small_dense").model)
    tokens = reference.decode(name, Fixed(proposer, 3), reference.SECOND, 9, loaded)
    reference.check_tokens(name, [*reference.PROMPT, *reference.SECOND], tokens)
    reference.check_holds(
        name, loaded, [*reference.PROMPT, *reference.SECOND, *reference.ids_of(tokens)]
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_returned_cache_predicts_as_a_cold_one(name: str) -> None:
    caches = reference.stock_caches(name)
    proposer = reference.scripted(name, reference.PROMPT, 21, reference.always("each"))
    tokens = reference.decode(name, Fixed(proposer, 4), count=21, caches=caches)
    text = (*reference.PROMPT, *reference.ids_of(tokens), *reference.SECOND)
    found = reference.feed(name, caches, reference.SECOND)
    wanted = reference.cold(name, text)[0][-len(reference.SECOND) :]
    apart = mx.abs(found - wanted).max().item()
    assert apart == 0.0
