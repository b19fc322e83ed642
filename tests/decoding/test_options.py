"""Quantised and bounded caches: the same tokens as plain decoding with the same options."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Final, TypedDict, cast

import mlx.core as mx
import pytest
from mlx import nn
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache, make_prompt_cache

from speculate import Decoder, DraftModel, Fixed, Off, Token
from speculate.errors import OptionError
from speculate.testing import ScriptedProposer
from tests.support import reference, tiny

# Rows of 32 numbers, since quantised groups hold no fewer.
WIDE: Final = "wide_heads"
COUNT: Final = 18
STARTS: Final = (0, 5, 6, 8, 10, 13)


class Options(TypedDict, total=False):
    """Options that mlx-lm's loop and the decoder have in common."""

    kv_bits: int
    kv_group_size: int
    quantized_kv_start: int
    prefill_step_size: int
    max_kv_size: int


def four_bits(start: int) -> Options:
    return {"kv_bits": 4, "kv_group_size": 32, "quantized_kv_start": start}


def plain(
    module: nn.Module, options: Options, turns: Sequence[tuple[int, ...]] = (reference.PROMPT,)
) -> tuple[list[int], list[object]]:
    """What mlx-lm's own loop generates in the last of some turns, and what it leaves."""
    caches: list[object] = make_prompt_cache(module, options.get("max_kv_size"))
    ids: list[int] = []
    for turn in turns:
        steps = generate_step(
            mx.array(turn), module, max_tokens=COUNT, prompt_cache=caches, **options
        )
        ids = [int(token) for token, _ in steps]
    return ids, caches


@pytest.mark.parametrize(
    "case", reference.sampled(product(STARTS, (0, 1, 4), (None, 0, "each"), (1, 2048)), 14)
)
def test_rows_are_quantised_at_the_same_token(case: tuple[int, int, object, int]) -> None:
    start, depth, wrong, step = case
    options: Options = {**four_bits(start), "prefill_step_size": step}
    expected, left = plain(reference.get(WIDE).module, options)
    text = [*reference.PROMPT, *expected]
    proposer = ScriptedProposer(text, reference.always(wrong), vocab_size=tiny.VOCAB)
    caches = reference.stock_caches(WIDE)
    decoder = Decoder(reference.get(WIDE).model, Fixed(proposer, depth), **options)
    assert reference.ids_of(decoder.generate(reference.PROMPT, COUNT, caches)) == expected
    assert {type(cache) for cache in caches} == {QuantizedKVCache}
    reference.same_content(caches, left)
    if wrong is None and depth:
        assert decoder.stats.accepted_tokens == decoder.stats.draft_tokens > 0


def test_rows_are_left_alone_until_the_text_is_long_enough() -> None:
    caches = reference.stock_caches(WIDE)
    proposer = reference.scripted(WIDE, reference.PROMPT, COUNT, reference.always(None))
    decoder = Decoder(reference.get(WIDE).model, Fixed(proposer, 4), **four_bits(1000))
    tokens = list(decoder.generate(reference.PROMPT, COUNT, caches))
    reference.check_tokens(WIDE, reference.PROMPT, tokens)
    assert {type(cache) for cache in caches} == {KVCache}


@pytest.mark.parametrize("emitted", [1, 2, 3, 6])
@pytest.mark.parametrize("depth", [0, 3])
def test_settled_around_the_token_where_rows_are_quantised(emitted: int, depth: int) -> None:
    expected, left = plain(reference.get(WIDE).module, four_bits(9))
    script = ScriptedProposer([*reference.PROMPT, *expected], vocab_size=tiny.VOCAB)
    caches = reference.stock_caches(WIDE)
    decoder = Decoder(reference.get(WIDE).model, Fixed(script, depth), **four_bits(9))
    running = decoder.generate(reference.PROMPT, COUNT, caches)
    tokens = [next(running).id for _ in range(emitted)]
    decoder.settle()
    assert {cache.offset for cache in caches} == {len(reference.PROMPT) + emitted}  # type: ignore[attr-defined]
    tokens += reference.ids_of(running)
    assert tokens == expected
    reference.same_content(caches, left)


def test_a_quantised_cache_goes_on_in_the_next_turn() -> None:
    module, model = reference.get(WIDE).module, reference.get(WIDE).model
    first, _ = plain(module, four_bits(8))
    second, left = plain(module, four_bits(8), (reference.PROMPT, reference.SECOND))
    caches = reference.stock_caches(WIDE)
    decoder = Decoder(model, Fixed(DraftModel(model), 3), **four_bits(8))
    assert reference.ids_of(decoder.generate(reference.PROMPT, COUNT, caches)) == first
    assert reference.ids_of(decoder.generate(reference.SECOND, COUNT, caches)) == second
    reference.same_content(caches, left)


def test_a_hybrid_quantises_its_attention_alone() -> None:
    stock = tiny.hybrid(hidden_size=64, head_dim=32)
    expected, left = plain(stock, four_bits(9))
    script = ScriptedProposer(
        [*reference.PROMPT, *expected], reference.always("each"), vocab_size=64
    )
    caches: list[object] = make_prompt_cache(stock)
    decoder = Decoder(reference.adapted(stock).model, Fixed(script, 4), **four_bits(9))
    assert reference.ids_of(decoder.generate(reference.PROMPT, COUNT, caches)) == expected
    reference.same_content(caches, left)


@pytest.mark.parametrize("start", [0, 10, 5000])
def test_a_window_that_cannot_be_quantised_is_refused_before_the_first_token(start: int) -> None:
    caches = reference.stock_caches("gpt_oss")
    decoder = Decoder(reference.get("gpt_oss").model, Off(), **four_bits(start))
    with pytest.raises(OptionError, match=r"layer 0 .*window"):
        list(decoder.generate(reference.PROMPT, 20, caches))
    # Nothing was taken, and the list can be used without the option.
    reference.same_content(caches, reference.stock_caches("gpt_oss"))
    tokens = reference.decode("gpt_oss", Off(), count=3, caches=caches)
    reference.check_tokens("gpt_oss", reference.PROMPT, tokens)


@pytest.mark.parametrize("start", [0, 3, 10])
@pytest.mark.parametrize("depth", [0, 3])
def test_rows_that_cannot_be_quantised_are_found_out_before_the_first_token(
    start: int, depth: int
) -> None:
    # Heads are 8 numbers wide, and a group holds 32.
    caches = reference.stock_caches("dense")
    proposer = reference.scripted("dense", reference.PROMPT, 12, reference.always("each"))
    decoder = Decoder(reference.get("dense").model, Fixed(proposer, depth), **four_bits(start))
    tokens: list[Token] = []
    with pytest.raises((OptionError, ValueError)):
        for token in decoder.generate(reference.PROMPT, 12, caches):
            tokens.append(token)
    assert tokens == []
    # Prefill may have been done by then, and is not lost.
    taken = reference.offset(caches[0]) or 0
    reference.check_holds("dense", caches, reference.PROMPT[:taken])


def test_a_refusal_leaves_the_text_before_it_alone() -> None:
    model = reference.get(WIDE).model
    decoder = Decoder(model, Off(), **four_bits(5000))
    first = reference.stock_caches(WIDE)
    tokens = list(decoder.generate(reference.PROMPT, 4, first))
    windows = cast("list[object]", [RotatingKVCache(8) for _ in first])
    with pytest.raises(OptionError):
        list(decoder.generate(reference.SECOND, 4, windows))
    reference.check_holds(WIDE, first, [*reference.PROMPT, *reference.ids_of(tokens)])
    second = list(decoder.generate(reference.SECOND, 4, first))
    reference.check_tokens(
        WIDE, [*reference.PROMPT, *reference.ids_of(tokens), *reference.SECOND], second
    )


# A bounded cache: the first rows stay, and a window slides over the rest.


def bounded(depth: int, wrong: object, limit: int = 10) -> tuple[Decoder, list[int]]:
    expected, _ = plain(reference.get("qwen3").module, {"max_kv_size": limit})
    script = ScriptedProposer(
        [*reference.PROMPT, *expected], reference.always(wrong), vocab_size=64
    )
    decoder = Decoder(reference.get("qwen3").model, Fixed(script, depth), max_kv_size=limit)
    return decoder, expected


@pytest.mark.parametrize("case", reference.sampled(product((0, 1, 4), (None, 0, 2, "each")), 6))
def test_a_bounded_cache_gives_the_tokens_of_plain_decoding(case: tuple[int, object]) -> None:
    decoder, expected = bounded(*case)
    assert reference.ids_of(decoder.generate(reference.PROMPT, COUNT)) == expected


def test_blocks_over_a_bounded_cache_score_as_single_steps() -> None:
    single, _ = bounded(0, None)
    block, _ = bounded(4, "each")
    pairs = zip(
        single.generate(reference.PROMPT, COUNT),
        block.generate(reference.PROMPT, COUNT),
        strict=True,
    )
    for one, other in pairs:
        assert mx.array_equal(one.logprobs, other.logprobs).item()


@pytest.mark.parametrize("depth", [0, 3])
def test_a_bounded_list_may_be_handed_in(depth: int) -> None:
    caches: list[object] = make_prompt_cache(reference.get("qwen3").module, 10)
    _, expected = bounded(0, None)
    script = ScriptedProposer([*reference.PROMPT, *expected], reference.always(1), vocab_size=64)
    decoder = Decoder(reference.get("qwen3").model, Fixed(script, depth))
    assert reference.ids_of(decoder.generate(reference.PROMPT, COUNT, caches)) == expected
    assert {type(cache) for cache in caches} == {RotatingKVCache}
    assert {reference.offset(cache) for cache in caches} == {len(reference.PROMPT) + COUNT}


@pytest.mark.parametrize(
    "options",
    [
        {"prefill_step_size": 0},
        {"prefill_step_size": -1},
        {"kv_bits": 4, "kv_group_size": 5},
        {"kv_bits": 7},
        {"kv_bits": 0},
        {"max_kv_size": 0},
        {"max_kv_size": -3},
    ],
    ids=str,
)
def test_options_that_mean_nothing_are_refused(options: Options) -> None:
    with pytest.raises(OptionError):
        list(Decoder(reference.get(WIDE).model, Off(), **options).generate(reference.PROMPT, 4))
