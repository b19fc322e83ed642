"""A draft model's cache that the caller keeps: it ends where the target's does."""

from __future__ import annotations

from itertools import product

import pytest

from speculate import Decoder, DraftModel, Fixed, SpeculateError
from speculate.errors import OptionError
from speculate.proposers import _chain
from speculate.protocols import Rollbackable
from speculate.testing import ScheduledStrategy
from tests.support import reference as kit
from tests.support.expected_drafts import check_draft_model
from tests.support.recording import GuidedModel, WatchedProposer

DRAFTS = ("small_dense", "qwen3_5", "qwen3_5_folded", "gpt_oss", "lfm2")
HANDED = product(DRAFTS, (1, 4, 5, 9), ("right", "wrong"))


@pytest.mark.parametrize("case", kit.sampled(HANDED, 12))
def test_a_cache_handed_over_ends_with_the_targets(case: tuple[str, int, str]) -> None:
    draft, count, wrong = case
    text = [*kit.PROMPT, *kit.truth("dense", kit.PROMPT, 12)]
    model = kit.get(draft).model
    mistakes = () if wrong == "right" else range(len(kit.PROMPT) + 1, 40, 3)
    given = model.make_cache()
    proposer = DraftModel(GuidedModel(model, text, mistakes), cache=given)
    tokens = kit.decode("dense", Fixed(proposer, 4), count=count)
    kit.check_tokens("dense", kit.PROMPT, tokens)
    back: list[object] = [layer.release() for layer in given]
    kit.check_holds(draft, back, text[: len(kit.PROMPT) + count])


@pytest.mark.parametrize("draft", DRAFTS)
def test_a_cache_handed_over_with_the_earlier_text_goes_on(draft: str) -> None:
    first = kit.truth("dense", kit.PROMPT, 4)
    text = [*kit.PROMPT, *first, *kit.SECOND]
    target, stock = kit.stock_caches("dense"), kit.stock_caches(draft)
    kit.feed("dense", target, text[:10])
    kit.feed(draft, stock, text[:10])
    given = kit.get(draft).model.adopt(stock)
    watched = WatchedProposer(DraftModel(kit.get(draft).model, cache=given))
    tokens = kit.decode("dense", Fixed(watched, 3), kit.SECOND, 8, target)
    kit.check_tokens("dense", text, tokens)
    text += kit.ids_of(tokens)
    check_draft_model(draft, text, watched)
    kit.check_holds(draft, [layer.release() for layer in given], text)


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("depths", [(4,), (3, 0, 0)], ids=str)
def test_settled_in_the_middle_of_a_block_it_holds_what_was_emitted(
    draft: str, depths: tuple[int, ...]
) -> None:
    text = [*kit.PROMPT, *kit.truth("dense", kit.PROMPT, 12)]
    model = kit.get(draft).model
    given = model.make_cache()
    proposer = DraftModel(GuidedModel(model, text, {10, 13}), cache=given)
    strategy = ScheduledStrategy([(proposer, depth) for depth in depths])
    decoder = Decoder(kit.get("dense").model, strategy)
    running = decoder.generate(kit.PROMPT, 12)
    for more in (2, 3, 4):
        for _ in range(more):
            next(running)
        decoder.settle()
        check_content(draft, given, text[: len(kit.PROMPT) + decoder.stats.emitted_tokens])
    running.close()


def check_content(draft: str, layers: list[Rollbackable], text: list[int]) -> None:
    """Caches of this package hold a text as a cold prefill leaves it, and stay as they are."""
    assert {layer.length() for layer in layers} == {len(text)}
    pairs = zip(layers, kit.cold(draft, tuple(text))[1], strict=True)
    assert all(kit.equal(kit.content(a), kit.content(b)) for a, b in pairs)


@pytest.mark.parametrize("draft", ["small_dense", "qwen3_5"])
def test_a_prefill_that_is_broken_off_rewinds_a_cache_handed_over_too(
    draft: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_chain, "MAX_BACKLOG", 2)

    def stop(done: int, total: int) -> None:
        if done == 8:
            raise KeyboardInterrupt

    model = kit.get(draft).model
    given = model.make_cache()
    decoder = Decoder(
        model,
        Fixed(DraftModel(model, cache=given), 3),
        prefill_step_size=4,
        prompt_progress_callback=stop,
    )
    caches = kit.stock_caches(draft)
    with pytest.raises(KeyboardInterrupt):
        list(decoder.generate(kit.text_of(20), 5, caches))
    kit.check_holds(draft, caches, [])
    assert {layer.length() for layer in given} == {0}
    tokens = list(decoder.generate(kit.PROMPT, 8, caches))
    assert decoder.stats.accepted_tokens == decoder.stats.draft_tokens > 0
    text = [*kit.PROMPT, *kit.ids_of(tokens)]
    kit.check_holds(draft, [layer.release() for layer in given], text)


def test_a_new_text_does_not_continue_the_old_one_in_a_cache_handed_over() -> None:
    model = kit.get("dense").model
    given = model.make_cache()
    decoder = Decoder(model, Fixed(DraftModel(model, cache=given), 3))
    list(decoder.generate(kit.PROMPT, 6))
    try:
        tokens = list(decoder.generate(kit.SECOND, 8))
    except SpeculateError:
        return  # To refuse is right, too.
    kit.check_tokens("dense", kit.SECOND, tokens)
    assert decoder.stats.accepted_tokens == decoder.stats.draft_tokens > 0
    text = [*kit.SECOND, *kit.ids_of(tokens)]
    kit.check_holds("dense", [layer.release() for layer in given], text)


def test_one_cache_for_two_layers_is_refused() -> None:
    model = kit.get("dense").model
    given = model.make_cache()
    with pytest.raises(OptionError, match="layer 0 and layer 1 share one"):
        DraftModel(model, cache=[given[0]] * len(given))
