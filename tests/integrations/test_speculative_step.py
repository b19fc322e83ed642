"""mlx-lm's step with a draft model: its signature, its yields, and the promise it breaks."""

from __future__ import annotations

import inspect
from typing import cast

import mlx.core as mx
import pytest
from mlx.nn.layers.base import Module
from mlx_lm.generate import generate_step
from mlx_lm.generate import speculative_generate_step as stock_step
from mlx_lm.models.cache import QuantizedKVCache
from mlx_lm.sample_utils import greedy_sampler, make_logits_processors, make_sampler

from speculate import adapt
from speculate.errors import OptionError, PromptError, VocabularyMismatchError
from speculate.integrations.mlx_lm import mtp_generate_step, speculative_generate_step
from tests.support import reference, tiny
from tests.support.mtp_heads import with_head
from tests.support.paired_caches import PAIRS, both_caches, check_both, ids

PROMPT = mx.array(reference.PROMPT)


def test_the_signature_is_mlx_lms() -> None:
    ours = inspect.signature(speculative_generate_step).parameters
    theirs = inspect.signature(stock_step).parameters
    described = [[(p.name, p.kind, p.default) for p in s.values()] for s in (ours, theirs)]
    assert described[0][: len(theirs)] == described[1]
    # And two of `generate_step`, with its defaults.
    plain = inspect.signature(generate_step).parameters
    more = described[0][len(theirs) :]
    assert more == [
        (name, plain[name].kind, plain[name].default)
        for name in ("max_kv_size", "prompt_progress_callback")
    ]


def test_the_head_takes_the_same_options() -> None:
    ours = inspect.signature(mtp_generate_step).parameters
    theirs = set(inspect.signature(speculative_generate_step).parameters) - {"draft_model"}
    assert set(ours) == theirs


@pytest.mark.parametrize("depth", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("draft", ["small_dense", "dense"])
def test_dense_models_give_what_mlx_lm_gives(draft: str, depth: int) -> None:
    target, drafter = reference.get("dense").module, reference.get(draft).module
    theirs = list(stock_step(PROMPT, target, drafter, num_draft_tokens=depth, max_tokens=24))
    ours = list(
        speculative_generate_step(
            PROMPT,
            reference.get("dense").stock,
            reference.get(draft).stock,
            num_draft_tokens=depth,
            max_tokens=24,
        )
    )  # fmt: skip
    assert ids(ours) == [token for token, _, _ in theirs]
    # At the end of the budget mlx-lm drafts a token more, which it then emits as one.
    assert [d for _, _, d in ours][: -depth - 1] == [d for _, _, d in theirs][: -depth - 1]
    for (_, found, _), (_, wanted, _) in zip(ours, theirs, strict=True):
        assert found.shape == (tiny.VOCAB,)
        assert mx.array_equal(found, wanted)


@pytest.mark.parametrize(("target", "draft"), PAIRS)
@pytest.mark.parametrize("depth", [1, 4])
def test_every_pair_gives_plain_decodings_tokens(target: str, draft: str, depth: int) -> None:
    steps = speculative_generate_step(
        PROMPT,
        reference.get(target).stock,
        reference.get(draft).stock,
        num_draft_tokens=depth,
        max_tokens=20,
    )
    assert ids(steps) == reference.truth(target, reference.PROMPT, 20)


def test_adapted_models_do_as_well_and_do_not_end_a_text() -> None:
    wanted = reference.truth("qwen3_5", reference.PROMPT, 12)
    target = adapt(reference.get("qwen3_5").stock, eos_token_ids=[wanted[3]])
    steps = speculative_generate_step(
        PROMPT, target, reference.get("small_dense").model, max_tokens=12
    )
    assert ids(steps) == wanted


def test_a_draft_that_knows_the_text_is_reported() -> None:
    model = reference.get("qwen3_5").stock
    found = list(speculative_generate_step(PROMPT, model, model, num_draft_tokens=3, max_tokens=9))
    assert [drafted for _, _, drafted in found] == [True, True, True, False] * 2 + [False]


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_a_list_for_both_ends_at_the_text(target: str, draft: str) -> None:
    for depth, count in ((0, 3), (1, 1), (2, 5), (3, 4), (5, 6)):
        caches = both_caches(target, draft)
        before = list(caches)
        steps = speculative_generate_step(
            PROMPT,
            reference.get(target).stock,
            reference.get(draft).stock,
            num_draft_tokens=depth,
            max_tokens=count,
            prompt_cache=caches,
        )
        text = [*reference.PROMPT, *ids(steps)]
        assert all(now is then for now, then in zip(caches, before, strict=True))
        check_both(target, draft, caches, text)


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_a_second_and_a_third_turn_go_on(target: str, draft: str) -> None:
    caches = both_caches(target, draft)
    text: list[int] = []
    for prompt, count in ((reference.PROMPT, 5), (reference.SECOND, 4), (reference.THIRD, 1)):
        steps = speculative_generate_step(
            mx.array(prompt),
            reference.get(target).stock,
            reference.get(draft).stock,
            num_draft_tokens=3,
            max_tokens=count,
            prompt_cache=caches,
        )
        text += prompt
        found = ids(steps)
        assert found == reference.truth(target, text, count)
        text += found
    check_both(target, draft, caches, text)


@pytest.mark.parametrize("filled", [0, 6])
@pytest.mark.parametrize("target", reference.PROMISED)
def test_a_list_for_the_target_alone(target: str, filled: int) -> None:
    before = reference.text_of(filled) if filled else ()
    caches = reference.stock_caches(target)
    if before:
        reference.feed(target, caches, before)
    draft = reference.get("small_dense").stock
    steps = speculative_generate_step(
        PROMPT,
        reference.get(target).stock,
        draft,
        num_draft_tokens=3,
        max_tokens=7,
        prompt_cache=caches,
    )
    found = ids(steps)
    assert found == reference.truth(target, (*before, *reference.PROMPT), 7)
    reference.check_holds(target, caches, (*before, *reference.PROMPT, *found))


def test_a_half_with_a_backlog_keeps_it_and_nothing_is_lost() -> None:
    before = reference.text_of(9)
    caches = both_caches("qwen3_5", "small_dense")
    reference.feed("qwen3_5", caches[:4], before)
    steps = speculative_generate_step(
        PROMPT,
        reference.get("qwen3_5").stock,
        reference.get("small_dense").stock,
        max_tokens=7,
        prompt_cache=caches,
    )
    found = ids(steps)
    assert found == reference.truth("qwen3_5", (*before, *reference.PROMPT), 7)
    reference.check_holds("qwen3_5", caches[:4], (*before, *reference.PROMPT, *found))
    reference.check_holds("small_dense", caches[4:], (*reference.PROMPT, *found))


def test_a_list_of_another_length_is_refused() -> None:
    caches = both_caches("dense", "small_dense")[:-2]
    kept = list(caches)
    model, draft = reference.get("dense").stock, reference.get("small_dense").stock
    more = [*caches, *both_caches("dense", "small_dense")[:-2], 0]
    with pytest.raises(OptionError, match="3 for the target, or these and 1"):
        list(speculative_generate_step(PROMPT, model, draft, prompt_cache=more))
    with pytest.raises(OptionError, match="2 caches"):
        list(speculative_generate_step(PROMPT, model, draft, prompt_cache=caches))
    assert caches == kept


@pytest.mark.parametrize("target", ["dense", "gpt_oss"])
def test_unlimited(target: str) -> None:
    steps = speculative_generate_step(
        PROMPT, reference.get(target).stock, reference.get("small_dense").stock, max_tokens=-1
    )
    assert [next(steps)[0] for _ in range(5)] == reference.truth(target, reference.PROMPT, 5)
    steps.close()


def test_none_takes_in_the_prompt_only() -> None:
    caches = both_caches("qwen3_5", "small_dense")
    model, draft = reference.get("qwen3_5").stock, reference.get("small_dense").stock
    steps = speculative_generate_step(PROMPT, model, draft, max_tokens=0, prompt_cache=caches)
    assert list(steps) == []
    check_both("qwen3_5", "small_dense", caches, reference.PROMPT)


def test_a_quantised_cache_as_in_plain_decoding() -> None:
    wide = reference.get("wide_heads")
    plain = generate_step(
        PROMPT, wide.module, max_tokens=16, kv_bits=4, kv_group_size=32, quantized_kv_start=10
    )
    caches = reference.stock_caches("wide_heads")
    steps = speculative_generate_step(
        PROMPT,
        wide.stock,
        reference.get("small_dense").stock,
        max_tokens=16,
        prompt_cache=caches,
        kv_bits=4,
        kv_group_size=32,
        quantized_kv_start=10,
    )
    assert ids(steps) == [token for token, _ in plain]
    assert {type(cache) for cache in caches} == {QuantizedKVCache}
    assert [cast(QuantizedKVCache, cache).offset for cache in caches] == [22] * len(caches)


def test_the_greedy_sampler_is_plain_decoding() -> None:
    model = reference.get("dense").stock
    for greedy in (greedy_sampler, make_sampler(temp=0)):
        steps = speculative_generate_step(PROMPT, model, model, sampler=greedy, max_tokens=3)
        assert ids(steps) == reference.truth("dense", reference.PROMPT, 3)


def test_processors_give_the_text_of_plain_decoding() -> None:
    model = reference.get("qwen3_5").stock
    for penalties in (
        make_logits_processors(repetition_penalty=1.8),
        make_logits_processors(presence_penalty=4.0),
    ):
        plain = generate_step(
            PROMPT, cast(Module, model), max_tokens=20, logits_processors=penalties
        )
        steps = speculative_generate_step(
            PROMPT, model, model, max_tokens=20, logits_processors=penalties
        )
        assert ids(steps) == [token for token, _ in plain]


def test_a_sampler_is_asked_once_for_each_token_of_a_block() -> None:
    model = reference.get("dense").stock
    asked: list[tuple[int, ...]] = []
    draw = make_sampler(temp=1.0, top_k=8)

    def counted(logprobs: mx.array) -> mx.array:
        asked.append(logprobs.shape)
        return draw(logprobs)

    steps = speculative_generate_step(
        PROMPT, model, model, num_draft_tokens=3, sampler=counted, max_tokens=13
    )
    assert len(ids(steps)) == 13
    assert set(asked) == {(1, 64)}
    assert len(asked) >= 13


def test_what_cannot_be_used_is_refused() -> None:
    model = reference.get("dense").stock
    with pytest.raises(OptionError, match="-1"):
        list(speculative_generate_step(PROMPT, model, model, num_draft_tokens=-1))
    with pytest.raises(OptionError, match="max_tokens"):
        list(speculative_generate_step(PROMPT, model, model, max_tokens=-2))
    with pytest.raises(PromptError, match="empty"):
        list(speculative_generate_step(mx.array([], dtype=mx.uint32), model, model))
    with pytest.raises(PromptError, match="64"):
        list(speculative_generate_step(mx.array([64]), model, model))
    other = reference.adapted(tiny.dense(vocab_size=96)).stock
    caches = both_caches("dense", "dense")
    with pytest.raises(VocabularyMismatchError):
        list(speculative_generate_step(PROMPT, model, other, prompt_cache=caches))
    check_both("dense", "dense", caches, ())


@pytest.mark.parametrize("step", [1, 4, 512])
def test_progress_is_reported_as_plain_decoding_reports_it(step: int) -> None:
    target, draft = reference.get("dense"), reference.get("small_dense").stock
    heard: list[list[tuple[int, int]]] = []
    for run in (
        lambda note: generate_step(
            PROMPT, target.module, max_tokens=3, prefill_step_size=step,
            prompt_progress_callback=note,
        ),
        lambda note: speculative_generate_step(
            PROMPT, target.stock, draft, max_tokens=3, prefill_step_size=step,
            prompt_progress_callback=note,
        ),
        lambda note: mtp_generate_step(
            PROMPT, with_head("qwen3_5").model, max_tokens=3, prefill_step_size=step,
            prompt_progress_callback=note,
        ),
    ):  # fmt: skip
        heard.append([])
        list(run(lambda done, total: heard[-1].append((done, total))))
    assert heard[1] == heard[0]
    assert heard[2] == heard[0]


def test_a_bounded_cache_gives_the_tokens_of_plain_decoding() -> None:
    # 10 rows, of which the first 4 stay: the prompt alone needs 6.
    bounded, draft = reference.get("qwen3"), reference.get("small_dense").stock
    plain = [t for t, _ in generate_step(PROMPT, bounded.module, max_tokens=18, max_kv_size=10)]
    steps = speculative_generate_step(
        PROMPT, bounded.stock, draft, num_draft_tokens=3, max_tokens=18, max_kv_size=10
    )
    assert ids(steps) == plain != reference.truth("qwen3", reference.PROMPT, 18)
