"""Every public option: a value of a wrong type or out of range is refused where it is given.

The error names the option, says what is allowed, and shows the value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import numpy as np
import pytest

import speculate as sp
from speculate.errors import OptionError, PromptError
from speculate.integrations.mlx_lm import mtp_generate_step, speculative_generate_step
from speculate.protocols import Costs
from tests.support import reference, tiny, tokenizers
from tests.support.mtp_heads import with_head

MODEL: Final = reference.get("dense").model
STOCK: Final[Any] = reference.get("dense").stock
PROMPT: Final = mx.array(reference.PROMPT)
Given = Callable[..., object]

INF: Final = math.inf
NAN: Final = math.nan
NO_INTEGER: Final = (2.5, NAN, INF, "3", True, None, [1])
NO_NUMBER: Final = (NAN, INF, "0.5", True, [0.5])


def run(**options: Any) -> object:
    return sp.Decoder(MODEL, sp.Off()).generate(reference.PROMPT, **options)


def decoder(**options: Any) -> object:
    return sp.Decoder(**{"model": MODEL, **options})


def text(**options: Any) -> object:
    return sp.stream_generate(MODEL, tokenizers.wrapper(), reference.PROMPT, **options)


def whole_text(**options: Any) -> object:
    return sp.generate(MODEL, tokenizers.wrapper(), reference.PROMPT, max_tokens=1, **options)


def fixed(**options: Any) -> object:
    return sp.Fixed(**{"proposer": sp.PromptLookup(), **options})


def adaptive(**options: Any) -> object:
    return sp.Adaptive(sp.PromptLookup(), **options)


def draft_model(**options: Any) -> object:
    return sp.DraftModel(**{"draft": MODEL, **options})


def step(**options: Any) -> object:
    return list(speculative_generate_step(PROMPT, STOCK, STOCK, **options))


def head_step(**options: Any) -> object:
    return list(mtp_generate_step(PROMPT, with_head("qwen3_5").model, **options))


def adapt(**options: Any) -> object:
    return sp.adapt(STOCK, **options)


def keep(**options: Any) -> None:
    with sp.speculation(MODEL.make_cache()) as window:
        window.keep(options["m"])


def load_head(**options: Any) -> object:
    return sp.load_mtp_head("nowhere", STOCK, **options)


Row = tuple[Given, str, tuple[object, ...], str]

ROWS: Final[list[Row]] = [
    (run, "max_tokens", (*NO_INTEGER, -2), "an integer of at least -1"),
    (run, "stop_tokens", ("12", b"12", [1.7], [-1], [tiny.VOCAB], 3, None), "token ids"),
    (run, "history", ("12", b"12", [1.7], [-1], [tiny.VOCAB], 3, None), "token ids"),
    (run, "prompt_cache", (3, (), {}), "list"),
    (decoder, "model", (object(), (MODEL, None), None, 3), r"speculate\.(load|adapt)"),
    (decoder, "strategy", (3, sp.Fixed), "strategy"),
    (decoder, "sampling", ({"temperature": 1}, 0.7, sp.Sampling), "Sampling"),
    (decoder, "logits_processors", (3, len, [3], "ab"), "functions"),
    (decoder, "kv_bits", (2.5, "4", 7, 0, True), "2, 3, 4, 5, 6, 8"),
    (decoder, "kv_group_size", (2.5, "4", 5, None), "32, 64, 128"),
    (decoder, "quantized_kv_start", (2.5, "4", -1, None), "an integer of at least 0"),
    (decoder, "max_kv_size", (2.5, "4", 0, -3, True), "an integer of at least 1"),
    (decoder, "prefill_step_size", (*NO_INTEGER, 0), "an integer of at least 1"),
    (decoder, "prompt_progress_callback", (3, "print"), "function"),
    (decoder, "observer", (3, []), "function"),
    (decoder, "stream", (3, "cpu"), "stream"),
    (sp.Sampling, "temperature", (*NO_NUMBER, None, -0.1, 1e-9), "a number of at least"),
    (sp.Sampling, "top_p", (*NO_NUMBER, None, -0.1, 1.1), "a number from 0 to 1"),
    (sp.Sampling, "top_k", (*NO_INTEGER, -1), "an integer of at least 0"),
    (sp.Sampling, "min_p", (*NO_NUMBER, None, 1.1), "a number from 0 to 1"),
    (sp.Sampling, "min_tokens_to_keep", (*NO_INTEGER, 0), "an integer of at least 1"),
    (sp.Sampling, "xtc_probability", (*NO_NUMBER, None, 1.1), "a number from 0 to 1"),
    (sp.Sampling, "xtc_threshold", (*NO_NUMBER, None, 0.6), "a number from 0 to 0.5"),
    (sp.Sampling, "xtc_special_tokens", ("12", [1.7], 3, [-1]), "token ids"),
    (sp.Sampling, "repetition_penalty", (*NO_NUMBER, -1.0), "a number of at least 0"),
    (sp.Sampling, "presence_penalty", NO_NUMBER, "a finite number"),
    (sp.Sampling, "frequency_penalty", NO_NUMBER, "a finite number"),
    (sp.Sampling, "repetition_context_size", (*NO_INTEGER, 0), "an integer of at least 1"),
    (sp.Sampling, "presence_context_size", (*NO_INTEGER, 0), "an integer of at least 1"),
    (sp.Sampling, "frequency_context_size", (*NO_INTEGER, 0), "an integer of at least 1"),
    (sp.Sampling, "logit_bias", ({"3": 1}, {1.5: 1}, {-1: 1}, [1]), "token ids"),
    (sp.Sampling, "logit_bias", ({3: "1"}, {3: NAN}, {3: INF}, {3: None}), "number"),
    (sp.Sampling, "seed", (2.5, "3", True, NAN), "an integer"),
    (sp.Sampling, "mode", ("typical", 3, None, ["block"]), "'coupled', 'rejection' or 'block'"),
    (fixed, "depth", (*NO_INTEGER, -1, 49), "an integer from 0 to 48"),
    (fixed, "proposer", (object(), 3, None, MODEL), "PromptLookup"),
    (adaptive, "clock", ("sun", 3, None, ["wall"]), "'wall' or 'fixed'"),
    (adaptive, "costs", (3, {}, Costs(0, {1: 1.0}, {})), "costs|Costs"),
    (adaptive, "measure", (1, "no", None), "True or False"),
    (adaptive, "cache_folder", (3, "folder"), "Path"),
    (draft_model, "draft", (object(), STOCK, None), r"speculate\.adapt"),
    (draft_model, "cache", (3, ()), "list"),
    (draft_model, "name", (3, None, ""), "text"),
    (sp.PromptLookup, "max_ngram", (*NO_INTEGER, 1), "an integer of at least 2"),
    (sp.PromptLookup, "min_ngram", (*NO_INTEGER, 0), "an integer of at least 1"),
    (sp.PromptLookup, "window", (2.5, "3", 2), "an integer of at least 3"),
    (sp.PromptLookup, "name", (3, None, ""), "text"),
    (text, "max_tokens", (*NO_INTEGER, -2, 0), "max_tokens must"),
    (text, "stop", (3, [3], b"x", "", None), "stop"),
    (text, "chat_template", ("no", 1), "True or False"),
    (text, "draft_model", (STOCK, 3), r"speculate\.adapt"),
    (text, "num_draft_tokens", (2,), "draft_model"),
    (text, "sampling", ({"temperature": 1}, 0.7), "Sampling"),
    (whole_text, "verbose", ("no", 1), "True or False"),
    (step, "num_draft_tokens", (*NO_INTEGER, -1, 49), "an integer from 0 to 48"),
    (step, "max_tokens", (2.5, NAN, -2), "an integer of at least -1"),
    (step, "max_kv_size", (2.5, 0), "an integer of at least 1"),
    (step, "prompt_cache", (3,), "list"),
    (head_step, "num_draft_tokens", (*NO_INTEGER, -1, 49), "an integer from 0 to 48"),
    (head_step, "prompt_progress_callback", (3,), "function"),
    (adapt, "eos_token_ids", ("12", [1.7], [-1], 3), "token ids"),
    (adapt, "vocabulary", (3, ["a"]), "mapping"),
    (adapt, "recurrence", ("fast", 3), "'ops', 'kernel' or None"),
    (keep, "m", (0.0, True, "0", None), "an integer"),
    (load_head, "dequantize", ("no", 1), "True or False"),
    (load_head, "norms", ("no", 1), "norms must be"),
    (load_head, "feed", ("no", 1), "'post_norm' or 'pre_norm'"),
    (sp.load, "path_or_repo", (3, True), "path"),
    (sp.load, "head", (3, True), "path"),
    (sp.load, "revision", (3,), "text"),
    (sp.load, "dequantize", ("no", 1), "True or False"),
    (sp.load, "lazy", ("no", 1), "True or False"),
    (sp.load, "trust_remote_code", ("no", 1), "True or False"),
    (sp.load, "tokenizer_config", (3, ["a"]), "mapping"),
    (sp.load, "model_config", (3, ["a"]), "mapping"),
]


def cases() -> list[object]:
    return [
        pytest.param(give, name, value, allowed, id=f"{give.__name__}-{name}-{n}")
        for give, name, values, allowed in ROWS
        for n, value in enumerate(values)
    ]


@pytest.mark.parametrize(("give", "name", "value", "allowed"), cases())
def test_a_wrong_value_is_refused_by_the_option_s_name(
    give: Given, name: str, value: object, allowed: str
) -> None:
    with pytest.raises(OptionError, match=allowed) as caught:
        give(**{name: value})
    assert name in str(caught.value)


def test_the_message_says_what_is_allowed_and_what_was_given() -> None:
    with pytest.raises(OptionError) as caught:
        run(max_tokens=2.5)
    wanted = "max_tokens must be an integer of at least -1 (-1: no limit), got 2.5"
    assert str(caught.value) == wanted


def test_numbers_of_other_libraries_are_numbers() -> None:
    sampling = sp.Sampling(
        temperature=np.float32(0.5),  # type: ignore[arg-type]
        top_k=np.int64(3),  # type: ignore[arg-type]
        min_p=0,
        logit_bias={np.int32(3): np.float64(1.5), 4: -INF},  # type: ignore[dict-item]
        xtc_special_tokens=np.array([1, 2]),  # type: ignore[arg-type]
        seed=np.uint32(7),  # type: ignore[arg-type]
    )
    assert sampling == sp.Sampling(
        temperature=0.5,
        top_k=3,
        logit_bias={3: 1.5, 4: -INF},
        xtc_special_tokens=(1, 2),
        seed=7,
    )
    assert type(sampling.top_k) is int
    options: Any = {"prefill_step_size": np.int64(4), "max_kv_size": np.int32(16)}
    running = sp.Decoder(MODEL, sp.Fixed(sp.PromptLookup(), np.int64(2)), **options)  # type: ignore[arg-type]
    count: Any = np.int64(3)
    every: list[Any] = [np.array([63]), mx.array([63]), {63}, frozenset()]
    for stops in every:
        found = list(running.generate(reference.PROMPT, count, stop_tokens=stops))
        assert reference.ids_of(found) == reference.truth("dense", reference.PROMPT, 3)


def test_ids_are_not_bytes_and_not_text() -> None:
    for prompt in ("abc", b"abc", None, 3):
        with pytest.raises(PromptError, match="prompt"):
            sp.Decoder(MODEL, sp.Off()).generate(prompt)  # type: ignore[arg-type]


def test_a_costs_folder_may_be_given(tmp_path: Path) -> None:
    assert adaptive(cache_folder=tmp_path)
