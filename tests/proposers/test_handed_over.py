"""A draft model's cache that the caller keeps: it ends where the target's does."""

from __future__ import annotations

from itertools import product

import pytest

from speculate import Decoder, DraftModel, Fixed, SpeculateError
from speculate.errors import OptionError
from speculate.proposers import _chain
from speculate.protocols import Rollbackable
from speculate.testing import ScheduledStrategy
from tests.support import reference
from tests.support.expected_drafts import check_draft_model
from tests.support.recording import GuidedModel, WatchedProposer

DRAFTS = ("small_dense", "qwen3_5", "qwen3_5_folded", "gpt_oss", "lfm2")
HANDED = product(DRAFTS, (1, 4, 5, 9), ("right", "wrong"))


@pytest.mark.parametrize("case", reference.sampled(HANDED, 12))
def test_a_cache_handed_over_ends_with_the_targets(case: tuple[str, int, str]) -> None:
    draft, count, wrong = case
    text = [*reference.PROMPT, *reference.truth("dense", reference.PROMPT, 12)]
    model = reference.get(draft).model
    mistakes = () if wrong == "right" else range(len(reference.PROMPT) + 1, 40, 3)
    given = model.make_cache()
    proposer = DraftModel(GuidedModel(model, text, mistakes), cache=given)
    tokens = reference.decode("dense", Fixed(proposer, 4), count=count)
    reference.check_tokens("dense", reference.PROMPT, tokens)
    back: list[object] = [layer.release() for layer in given]
    reference.check_holds(draft, back, text[: len(reference.PROMPT) + count])


@pytest.mark.parametrize("draft", DRAFTS)
def test_a_cache_handed_over_with_the_earlier_text_goes_on(draft: str) -> None:
    first = reference.truth("dense", reference.PROMPT, 4)
    text = [*reference.PROMPT, *first, *reference.SECOND]
    target, stock = reference.stock_caches("dense"), reference.stock_caches(draft)
    reference.feed("dense", target, text[:10])
    reference.feed(draft, stock, text[:10])
    given = reference.get(draft).model.adopt(stock)
    watched = WatchedProposer(DraftModel(reference.get(draft).model, cache=given))
    tokens = reference.decode("dense", Fixed(watched, 3), reference.SECOND, 8, target)
    reference.check_tokens("dense", text, tokens)
    text += reference.ids_of(tokens)
    check_draft_model(draft, text, watched)
    reference.check_holds(draft, [layer.release() for layer in given], text)


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("depths", [(4,), (3, 0, 0)], ids=str)
def test_settled_in_the_middle_of_a_block_it_holds_what_was_emitted(
    draft: str, depths: tuple[int, ...]
) -> None:
    text = [*reference.PROMPT, *reference.truth("dense", reference.PROMPT, 12)]
    model = reference.get(draft).model
    given = model.make_cache()
    proposer = DraftModel(GuidedModel(model, text, {10, 13}), cache=given)
    strategy = ScheduledStrategy([(proposer, depth) for depth in depths])
    decoder = Decoder(reference.get("dense").model, strategy)
    running = decoder.generate(reference.PROMPT, 12)
    for more in (2, 3, 4):
        for _ in range(more):
            next(running)
        decoder.settle()
        check_content(draft, given, text[: len(reference.PROMPT) + decoder.stats.emitted_tokens])
    running.close()


def check_content(draft: str, layers: list[Rollbackable], text: list[int]) -> None:
    """Caches of this package hold a text as a cold prefill leaves it, and stay as they are."""
    assert {layer.length() for layer in layers} == {len(text)}
    pairs = zip(layers, reference.cold(draft, tuple(text))[1], strict=True)
    assert all(reference.equal(reference.content(a), reference.content(b)) for a, b in pairs)


@pytest.mark.parametrize("draft", ["small_dense", "qwen3_5"])
def test_a_prefill_that_is_broken_off_rewinds_a_cache_handed_over_too(
    draft: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_chain, "MAX_BACKLOG", 2)

    def stop(done: int, total: int) -> None:
        if done == 8:
            raise KeyboardInterrupt

    model = reference.get(draft).model
    given = model.make_cache()
    decoder = Decoder(
        model,
        Fixed(DraftModel(model, cache=given), 3),
        prefill_step_size=4,
        prompt_progress_callback=stop,
    )
    caches = reference.stock_caches(draft)
    with pytest.raises(KeyboardInterrupt):
        list(decoder.generate(reference.text_of(20), 5, caches))
    reference.check_holds(draft, caches, [])
    assert {layer.length() for layer in given} == {0}
    tokens = list(decoder.generate(reference.PROMPT, 8, caches))
    assert decoder.stats.accepted_tokens == decoder.stats.draft_tokens > 0
    text = [*reference.PROMPT, *reference.ids_of(tokens)]
    reference.check_holds(draft, [layer.release() for layer in given], text)


def test_a_new_text_does_not_continue_the_old_one_in_a_cache_handed_over() -> None:
    model = reference.get("dense").model
    given = model.make_cache()
    decoder = Decoder(model, Fixed(DraftModel(model, cache=given), 3))
    list(decoder.generate(reference.PROMPT, 6))
    try:
        tokens = list(decoder.generate(reference.SECOND, 8))
    except SpeculateError:
        return  # To refuse is right, too.
    reference.check_tokens("dense", reference.SECOND, tokens)
    assert decoder.stats.accepted_tokens == decoder.stats.draft_tokens > 0
    text = [*reference.SECOND, *reference.ids_of(tokens)]
    reference.check_holds("dense", [layer.release() for layer in given], text)


def test_one_cache_for_two_layers_is_refused() -> None:
    model = reference.get("dense").model
    given = model.make_cache()
    with pytest.raises(OptionError, match="layer 0 and layer 1 share one"):
        DraftModel(model, cache=[given[0]] * len(given))
