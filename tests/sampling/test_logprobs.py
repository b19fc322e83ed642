"""Reported scores are the target's, after processors and before filters, drafted or not."""

from __future__ import annotations

from typing import Final

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import generate_step

from speculate import Decoder, DraftModel, Fixed, Off, Sampling, Token
from speculate.sampling.options import MODES, Mode
from speculate.sampling.processors import Processor
from tests.sampling.test_processors import by_mlx_lm, of_mlx_lm
from tests.support import reference, tiny
from tests.support.drafters import COUNT, PROMPT, Case, headed, strategy_for, text_of
from tests.support.table_models import TableModel, floats, number, table, to_mx

DRAFTERS: Final = ("mtp 3", "cousin 4", "right 3", "wrong by turns 3", "switching", "nobody")


def decoded(case: Case, who: str, sampling: Sampling, extra: list[Processor]) -> list[Token]:
    text = [*PROMPT, *text_of(Case(case.family, case.temperature, case.options))]
    decoder = Decoder(headed(case, text), strategy_for(who, case, text), sampling, extra)
    return list(decoder.generate(PROMPT, COUNT))


def check_scores(family: str, tokens: list[Token]) -> None:
    """Every token was scored as a cold prefill of the text before it scores it, bit for bit."""
    text = (*PROMPT, *reference.ids_of(tokens))
    wanted = reference.logprobs(reference.cold(family, text)[0])[len(PROMPT) - 1 : -1]
    found = mx.stack([token.logprobs for token in tokens])
    assert mx.abs(found - wanted).max(axis=-1).tolist() == [0.0] * len(tokens)


def apart(found: mx.array, wanted: mx.array) -> float:
    return number(mx.abs(found - wanted.astype(mx.float32)).max())


@pytest.mark.parametrize("name", ["everything", "budget"])
@pytest.mark.parametrize("who", DRAFTERS)
def test_scores_are_mlx_lm_s_after_processors(who: str, name: str) -> None:
    stock = reference.get("qwen3_5").module
    steps = generate_step(
        mx.array(PROMPT), stock, max_tokens=COUNT, logits_processors=of_mlx_lm(name)
    )
    text = [*PROMPT, *by_mlx_lm("qwen3_5", name)]
    case = Case("qwen3_5", 0.0, "plain")
    strategy = strategy_for(who, case, text)
    decoder = Decoder(headed(case, text), strategy, None, of_mlx_lm(name))
    for token, (id_, wanted) in zip(decoder.generate(PROMPT, COUNT), steps, strict=True):
        assert token.id == id_
        assert token.logprobs.dtype == mx.float32
        assert token.logprobs.shape == (tiny.VOCAB,)
        # A removed token is removed in both.
        assert mx.array_equal(token.logprobs == -mx.inf, wanted == -mx.inf).item()
        legal = token.logprobs > -mx.inf
        assert apart(mx.where(legal, token.logprobs, 0), mx.where(legal, wanted, 0)) < 1e-5


@pytest.mark.parametrize("who", DRAFTERS)
@pytest.mark.parametrize("mode", MODES)
def test_scores_are_a_cold_prefill_s_whatever_was_filtered_and_drafted(
    mode: Mode, who: str
) -> None:
    sampling = Sampling(temperature=0.7, top_p=0.5, top_k=3, min_p=0.1, seed=2, mode=mode)
    tokens = decoded(Case("qwen3_5", 0.7, "plain"), who, sampling, [])
    check_scores("qwen3_5", tokens)


@pytest.mark.parametrize("family", ["gpt_oss", "qwen3_next"])
def test_scores_of_the_other_families_too(family: str) -> None:
    case = Case(family, 1.0, "plain")
    check_scores(family, decoded(case, "cousin 4", case.sampling, []))


def test_scores_in_half_precision_are_reported_in_float32() -> None:
    logits = to_mx(table(1), mx.bfloat16)
    model = TableModel(logits)
    decoder = Decoder(model, Fixed(DraftModel(TableModel(logits)), 3), Sampling(temperature=1.0))
    last_token = 3
    for token in decoder.generate([1, last_token], 12):
        row = np.array(logits[last_token].astype(mx.float32)).astype(np.float64)
        wanted = row - np.log(np.exp(row).sum())
        assert token.logprobs.dtype == mx.float32
        assert np.abs(np.array(token.logprobs) - wanted).max() < 1e-6
        last_token = token.id


def test_the_top_scores_are_the_best_ones_in_order() -> None:
    tokens = decoded(Case("qwen3_5", 0.0, "plain"), "right 3", Sampling(), [])
    for token in tokens:
        scores = floats(token.logprobs)
        top = token.top_logprobs(5)
        assert [score for _, score in top] == sorted(scores, reverse=True)[:5]
        assert all(scores[id_] == score for id_, score in top)
        assert top[0][0] == token.id
    assert tokens[0].top_logprobs(0) == []
    assert len(tokens[0].top_logprobs(10_000)) == tiny.VOCAB


def test_scores_may_be_read_after_the_run() -> None:
    case = Case("qwen3_5", 1.0, "plain")
    tokens = decoded(case, "cousin 4", case.sampling, [])
    assert len({number(token.logprobs[token.id]) for token in tokens}) > COUNT // 2


def test_an_accepted_draft_says_who_drafted_it_and_no_other_token_does() -> None:
    text = text_of(Case("qwen3_5", 0.0, "plain"))
    strategy = strategy_for("wrong by turns 3", Case("qwen3_5", 0.0, "plain"), [*PROMPT, *text])
    lengths: list[tuple[int, int]] = []
    decoder = Decoder(
        reference.get("qwen3_5").model,
        strategy,
        observer=lambda round: lengths.append((round.accepted, round.emitted)),
    )
    tokens = list(decoder.generate(PROMPT, COUNT))
    flags = [token.from_draft for token in tokens]
    expected: list[bool] = []
    for accepted, emitted in lengths:
        expected += [True] * accepted + [False] * (emitted - accepted)
    assert flags == expected
    # Wrong at 0, 1, 2 and nowhere, over and over: a residual or a bonus token ends each.
    assert flags[:10] == [False, True, False, True, True, False, True, True, True, False]
    for token in tokens:
        assert token.proposer == ("wrong by turns" if token.from_draft else None)


@pytest.mark.parametrize("mode", MODES)
def test_flags_agree_with_the_counters(mode: Mode) -> None:
    sampling = Sampling(temperature=1.0, seed=3, mode=mode)
    case = Case("qwen3_5", 1.0, "plain")
    text = [*PROMPT, *text_of(case)]
    decoder = Decoder(headed(case, text), strategy_for("switching", case, text), sampling)
    tokens = list(decoder.generate(PROMPT, 40))
    assert sum(token.from_draft for token in tokens) == decoder.stats.accepted_tokens
    for name, counted in decoder.stats.by_proposer.items():
        assert sum(token.proposer == name for token in tokens) == counted.accepted_tokens


def test_without_drafts_no_proposer_is_named() -> None:
    for token in Decoder(reference.get("dense").model, Off()).generate(PROMPT, 5):
        assert not token.from_draft
        assert token.proposer is None
