"""Text in, text out: as mlx-lm does it, and stop strings besides."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import mlx.core as mx
import mlx_lm
import pytest
from mlx_lm.generate import GenerationResponse, generation_stream
from mlx_lm.generate import stream_generate as stock_stream
from mlx_lm.tokenizer_utils import NaiveStreamingDetokenizer, TokenizerWrapper

import speculate as sp
from speculate.errors import OptionError, PromptError
from speculate.text import DecoderOptions
from tests.support import reference, tiny, tokenizers
from tests.support.scripted_model import saying

FIELDS = ("text", "token", "prompt_tokens", "generation_tokens", "finish_reason")


def fields(responses: list[GenerationResponse]) -> list[tuple[object, ...]]:
    return [tuple(getattr(r, name) for name in FIELDS) for r in responses]


# As mlx-lm.


@pytest.mark.parametrize("eos", [tokenizers.EOS_ID, 0, 3, 5])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_responses_are_mlx_lms(count: int, eos: int) -> None:
    """Also where the end of the text is its last token, or comes before."""
    tiny_model = reference.get("dense")
    ends = eos if eos == tokenizers.EOS_ID else reference.truth("dense", reference.PROMPT, 8)[eos]
    tokenizer = tokenizers.wrapper(ends)
    wanted = list(
        stock_stream(tiny_model.module, tokenizer, list(reference.PROMPT), max_tokens=count)
    )
    proposer = reference.scripted("dense", reference.PROMPT, 12, reference.always(2))
    for strategy in (sp.Off(), sp.Fixed(proposer, 4)):
        found = list(
            sp.stream_generate(
                tiny_model.model, tokenizer, reference.PROMPT, max_tokens=count, strategy=strategy
            )
        )
        assert fields(found) == fields(wanted)
        for ours, theirs in zip(found, wanted, strict=True):
            assert mx.array_equal(ours.logprobs, theirs.logprobs)
            assert min(ours.prompt_tps, ours.generation_tps, ours.peak_memory) > 0
        assert sp.generate(
            tiny_model.model, tokenizer, reference.PROMPT, max_tokens=count, strategy=strategy
        ) == "".join(r.text for r in wanted)


@pytest.mark.parametrize("detokenizer", ["naive", "bytes"])
def test_letters_of_several_tokens(detokenizer: str) -> None:
    """A euro sign comes as three tokens, one of which may be the last that is allowed."""
    ids = [0, 58, 59, 60, 1, 56, 56, 58, 59, 60]
    model, tokenizer = saying(ids), tokenizers.wrapper()
    if detokenizer == "naive":
        tokenizer = TokenizerWrapper(tokenizers.fast_tokenizer(), NaiveStreamingDetokenizer)
    for count in range(1, len(ids) + 1):
        found = list(sp.stream_generate(model, tokenizer, [2], max_tokens=count))
        assert "".join(r.text for r in found) == tokenizers.decoded(ids[:count])
    assert "".join(r.text for r in found) == "a€b  €"


def test_accepted_drafts_are_reported() -> None:
    proposer = reference.scripted("dense", reference.PROMPT, 12, reference.always(None))
    found = sp.stream_generate(
        reference.get("dense").model,
        tokenizers.wrapper(),
        reference.PROMPT,
        max_tokens=8,
        strategy=sp.Fixed(proposer, 3),
    )
    assert [r.from_draft for r in found] == [True, True, True, False] * 2


def test_prompts_are_text_ids_or_an_array() -> None:
    model, tokenizer = reference.get("dense").model, tokenizers.wrapper()
    wanted = sp.generate(model, tokenizer, [0, 1, 2], max_tokens=5)
    assert sp.generate(model, tokenizer, "abc", max_tokens=5) == wanted
    assert sp.generate(model, tokenizer, mx.array([0, 1, 2]), max_tokens=5) == wanted
    assert sp.generate(model, tokenizers.fast_tokenizer(), (0, 1, 2), max_tokens=5) == wanted


def test_a_chat_template_makes_the_prompt_a_message() -> None:
    bare = tokenizers.fast_tokenizer()
    bare.chat_template = "{% for m in messages %}X{{ m['content'] }}Y{% endfor %}"
    model, tokenizer = reference.get("dense").model, TokenizerWrapper(bare)
    wanted = sp.generate(model, tokenizer, "XabY", max_tokens=5)
    assert sp.generate(model, tokenizer, "ab", chat_template=True, max_tokens=5) == wanted
    with pytest.raises(OptionError, match="text"):
        sp.generate(model, tokenizer, [1, 2], chat_template=True)
    with pytest.raises(OptionError, match="no chat template"):
        sp.generate(model, tokenizers.wrapper(), "ab", chat_template=True)


def test_scores_can_be_read_in_another_thread() -> None:
    responses = list(
        sp.stream_generate(
            reference.get("dense").model, tokenizers.wrapper(), reference.PROMPT, max_tokens=4
        )
    )
    with ThreadPoolExecutor(1) as other:
        best = other.submit(lambda: [r.logprobs.argmax().item() for r in responses]).result()
    assert best == [r.token for r in responses]


def test_verbose_prints_what_mlx_lm_prints(capsys: pytest.CaptureFixture[str]) -> None:
    tiny_model, tokenizer = reference.get("dense"), tokenizers.wrapper()
    text = sp.generate(tiny_model.model, tokenizer, reference.PROMPT, max_tokens=6, verbose=True)
    ours = capsys.readouterr().out.splitlines()
    mlx_lm.generate(
        tiny_model.module, tokenizer, list(reference.PROMPT), max_tokens=6, verbose=True
    )
    theirs = capsys.readouterr().out.splitlines()
    assert ours[:-3] == theirs[:-3]
    assert text in "\n".join(ours)
    kinds = [[line.partition(":")[0] for line in lines[-3:]] for lines in (ours, theirs)]
    assert kinds[0] == kinds[1] == ["Prompt", "Generation", "Peak memory"]


def test_memory_is_wired_for_the_stock_model(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[object] = []

    @contextmanager
    def wired_limit(module: object, streams: Sequence[object]) -> Iterator[None]:
        heard.extend([module, *streams])
        yield
        heard.append("over")

    monkeypatch.setattr(sys.modules["mlx_lm.generate"], "wired_limit", wired_limit)
    responses = sp.stream_generate(
        reference.get("dense").model, tokenizers.wrapper(), [1], max_tokens=2
    )
    assert heard == []
    next(responses)
    assert heard[0] is reference.get("dense").module
    assert heard[1:] == [generation_stream]
    assert len(list(responses)) == 1
    assert heard[2:] == ["over"]


def test_options_are_the_decoders() -> None:
    known = inspect.signature(sp.Decoder).parameters
    named = {"model", "strategy", "sampling"}
    assert set(DecoderOptions.__annotations__) == set(known) - named


def test_what_cannot_be_used_is_refused_at_once() -> None:
    model, tokenizer = reference.get("dense").model, tokenizers.wrapper()
    with pytest.raises(OptionError, match="max_tokens"):
        sp.stream_generate(model, tokenizer, [1], max_tokens=0)
    with pytest.raises(OptionError, match="stop string"):
        sp.stream_generate(model, tokenizer, [1], stop="")
    with pytest.raises(PromptError, match="empty"):
        sp.stream_generate(model, tokenizer, "")
    with pytest.raises(PromptError, match="64"):
        sp.stream_generate(model, tokenizer, [tiny.VOCAB])
    with pytest.raises(PromptError, match="shape"):
        sp.stream_generate(model, tokenizer, mx.array([[1, 2]]))


# The cache.


@pytest.mark.parametrize("name", reference.PROMISED)
def test_the_cache_is_back_with_the_last_response(name: str) -> None:
    caches = reference.stock_caches(name)
    responses = sp.stream_generate(
        reference.get(name).model,
        tokenizers.wrapper(),
        reference.PROMPT,
        max_tokens=5,
        prompt_cache=caches,
    )
    found = [next(responses).token for _ in range(5)]
    reference.check_holds(name, caches, [*reference.PROMPT, *found])
    assert list(responses) == []


def test_closing_returns_it_as_well() -> None:
    caches = reference.stock_caches("qwen3_5")
    model, tokenizer = reference.get("qwen3_5").model, tokenizers.wrapper()
    responses = sp.stream_generate(model, tokenizer, reference.PROMPT, prompt_cache=caches)
    found = [next(responses).token for _ in range(3)]
    responses.close()
    reference.check_holds("qwen3_5", caches, [*reference.PROMPT, *found])


# mlx-lm's words for a draft model.


@pytest.mark.parametrize("count", [None, 0, 2, 5])
def test_a_draft_model_may_be_named_as_in_mlx_lm(count: int | None) -> None:
    model, tokenizer = reference.get("qwen3_5").model, tokenizers.wrapper()
    found = list(
        sp.stream_generate(
            model,
            tokenizer,
            reference.PROMPT,
            max_tokens=12,
            draft_model=model,
            num_draft_tokens=count,
        )
    )
    assert [r.token for r in found] == reference.truth("qwen3_5", reference.PROMPT, 12)
    if count is not None:
        # The target drafts for itself, so that each of a round's drafts is accepted.
        rounds = [*([True] * count), False] * 12
        assert [r.from_draft for r in found][:-1] == rounds[:11]


def test_a_draft_model_goes_without_a_strategy() -> None:
    model, tokenizer = reference.get("dense").model, tokenizers.wrapper()
    with pytest.raises(OptionError, match=r"draft_model .*strategy=Fixed"):
        sp.generate(model, tokenizer, [1], draft_model=model, strategy=sp.Off())
    with pytest.raises(OptionError, match=r"num_draft_tokens .*draft_model.*strategy=Fixed"):
        sp.generate(model, tokenizer, [1], num_draft_tokens=2)
