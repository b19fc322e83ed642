"""Costs measured on the text at hand: nothing shows of it afterwards, and it is done once."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import islice, product
from pathlib import Path
from typing import Final, final

import mlx.core as mx
import pytest

from speculate import (
    Adaptive,
    Decoder,
    DraftModel,
    MTPChain,
    Off,
    PromptLookup,
    SpeculativeModel,
    Token,
)
from speculate.decoding.cost_probe import REPEATS, ROWS
from speculate.protocols import (
    Costs,
    DraftScore,
    Forecast,
    Forward,
    Plan,
    Proposer,
    Round,
    Strategy,
    SupportsForecast,
    SupportsFreeDrafts,
)
from speculate.strategies.adaptive import PROBE_MIN_TOKENS
from speculate.testing import ScheduledStrategy, ScriptedProposer
from tests.decoding.test_abstaining import Abstaining
from tests.support import reference, tiny
from tests.support.expected_drafts import check_draft_model, check_head
from tests.support.mtp_heads import with_head, with_knowing_head
from tests.support.recording import Broken, PassingModel, Tick, Ticker, WatchedProposer, quiet

FAMILIES: Final = (*tiny.FAMILIES, *tiny.MORE)


@final
class Curious:
    """Does what another strategy does, and wants to know what it costs, each text anew."""

    def __init__(self, inner: Strategy) -> None:
        self._inner = inner
        self.costs: list[Costs] = []

    @property
    def proposers(self) -> Sequence[Proposer]:
        return self._inner.proposers

    def begin(self) -> None:
        self._inner.begin()

    def plan(self, remaining: int | None, /) -> Plan:
        return self._inner.plan(remaining)

    def observe(self, round: Round, /) -> None:
        self._inner.observe(round)

    def needs_costs(self, key: str | None, context: int, remaining: int | None, /) -> bool:
        return True

    def set_costs(self, costs: Costs, /) -> None:
        self.costs.append(costs)


def curious(*proposers: Proposer) -> Curious:
    return Curious(ScheduledStrategy([*((one, 3) for one in proposers), (proposers[0], 0)]))


# Nothing shows of it.


@pytest.mark.parametrize("case", reference.sampled(product(FAMILIES, (1, 6, 21)), 9, seed=9))
def test_it_leaves_every_cache_as_it_was(case: tuple[str, int]) -> None:
    # 21 tokens are more than two windows.
    name, length = case
    draft = {"gpt_oss": "gpt_oss", "lfm2": "lfm2"}.get(name, "qwen3_5")
    small = WatchedProposer(DraftModel(reference.get(draft).model))
    strategy = curious(small, PromptLookup())
    caches = reference.stock_caches(name)
    decoder = Decoder(reference.get(name).model, strategy)
    text: list[int] = []
    for turn in range(2):
        text += reference.text_of(length, turn)
        tokens = list(decoder.generate(reference.text_of(length, turn), 9, caches))
        reference.check_tokens(name, text, tokens)
        text += reference.ids_of(tokens)
        reference.check_holds(name, caches, text)
    check_draft_model(draft, text, small)
    assert [costs.context for costs in strategy.costs] == [length - 1, 2 * length + 8]
    for costs in strategy.costs:
        assert set(costs.forward) == set(ROWS)
        assert set(costs.draft) == {"draft"}
        assert all(0 < seconds < 60 for seconds in [*costs.forward.values(), *costs.draft.values()])


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_next"])
def test_it_leaves_a_head_as_it_was(name: str) -> None:
    model, chain = with_head(name), WatchedProposer(MTPChain())
    strategy = curious(chain)
    prompt = reference.text_of(11)
    tokens = list(Decoder(model.model, strategy, prefill_step_size=4).generate(prompt, 14))
    reference.check_tokens(name, prompt, tokens)
    check_head(model, [*prompt, *reference.ids_of(tokens)], chain)
    assert set(strategy.costs[0].draft) == {"mtp"}


def test_who_abstains_has_no_costs() -> None:
    strategy = curious(Abstaining(), MTPChain())
    tokens = list(Decoder(with_head("qwen3_5").model, strategy).generate([9], 6))
    reference.check_tokens("qwen3_5", [9], tokens)
    # A head has nothing to draft from after a prompt of one token, and has after the next.
    assert set(strategy.costs[0].draft) == {"mtp"}


class Forecasting(WatchedProposer):
    """A proposer that forecasts always the same, and may be free."""

    def __init__(self, name: str, text: Sequence[int]) -> None:
        super().__init__(ScriptedProposer(text, vocab_size=tiny.VOCAB, name=name))

    def forecast(self) -> Forecast:
        return Forecast(1, 4)

    def scores(self) -> Sequence[DraftScore]:
        return ()


class Free(WatchedProposer):
    """A proposer that says whether it is free, and forecasts nothing."""

    def __init__(self, name: str, text: Sequence[int], *, free: bool) -> None:
        super().__init__(ScriptedProposer(text, vocab_size=tiny.VOCAB, name=name))
        self.free = free


def test_a_proposer_is_measured_unless_it_is_free() -> None:
    text = [*reference.PROMPT, *reference.truth("dense", reference.PROMPT, 24)]
    forecasting = Forecasting("forecasting", text)
    free, costly = Free("free", text, free=True), Free("costly", text, free=False)
    assert isinstance(forecasting, SupportsForecast)
    assert not isinstance(forecasting, SupportsFreeDrafts)
    assert isinstance(free, SupportsFreeDrafts)
    assert not isinstance(free, SupportsForecast)
    strategy = curious(forecasting, free, costly, PromptLookup())
    tokens = list(Decoder(reference.get("dense").model, strategy).generate(reference.PROMPT, 6))
    reference.check_tokens("dense", reference.PROMPT, tokens)
    assert set(strategy.costs[0].draft) == {"forecasting", "costly"}


@pytest.mark.parametrize("start", [0, 6, 7, 8, 9, 12, 40])
def test_rows_that_are_quantised_on_the_way_are_quantised_where_they_would_be(start: int) -> None:
    model = reference.get("wide_heads").model
    found: list[list[Token]] = []
    caches: list[list[object]] = []
    strategy = curious(
        reference.scripted("wide_heads", reference.PROMPT, 20, reference.always("each"))
    )
    for one in (Off(), strategy):
        caches.append(reference.stock_caches("wide_heads"))
        decoder = Decoder(model, one, kv_bits=4, kv_group_size=32, quantized_kv_start=start)
        found.append(list(decoder.generate(reference.PROMPT, 16, caches[-1])))
    assert reference.ids_of(found[0]) == reference.ids_of(found[1])
    for plain, drafted in zip(*found, strict=True):
        assert mx.array_equal(plain.logprobs, drafted.logprobs).item()
    reference.same_content(caches[1], caches[0])
    # A block ends where rows get quantised: wider ones cannot be tried in front of it.
    # The first round, whose draft is wrong, feeds one token in front of what is measured.
    room = start - len(reference.PROMPT) - 1 if start > 6 else 99
    rows = {rows for rows in ROWS if rows <= max(room, 0) + 1}
    assert [set(costs.forward) for costs in strategy.costs] == ([rows] if len(rows) > 1 else [])


def test_a_window_with_sinks_is_as_it_was() -> None:
    model, prompt = reference.get("dense").model, reference.text_of(30)
    found = [
        list(Decoder(model, one, max_kv_size=16).generate(prompt, 12))
        for one in (Off(), curious(DraftModel(reference.get("small_dense").model)))
    ]
    for plain, drafted in zip(*found, strict=True):
        assert plain.id == drafted.id
        assert mx.array_equal(plain.logprobs, drafted.logprobs).item()


# It is done once.


class Named(PassingModel):
    """A model that can be told apart from others, and whose forwards are counted."""

    def __init__(self, model: SpeculativeModel, name: str = "a model", tick: Tick = quiet) -> None:
        super().__init__(model)
        self.fingerprint = name
        self.widths: list[int] = []
        self._tick = tick

    def forward(
        self, tokens: mx.array, cache: Sequence[object], /, *, taps: Sequence[int] = ()
    ) -> Forward:
        self.widths.append(tokens.shape[1])
        self._tick("forward")
        return self.inner.forward(tokens, cache)


MEASURING: Final = [rows for rows in ROWS for _ in range(1 + REPEATS)]


def measured(model: Named, strategy: Strategy, limit: int = -1) -> bool:
    """Whether forwards measure behind the first token of a text of ten."""
    model.widths.clear()
    running = Decoder(model, strategy).generate(reference.PROMPT, limit)
    tokens = list(islice(running, 10))
    running.close()
    reference.check_tokens("dense", reference.PROMPT, tokens)
    # The prompt comes first, and then a plain step.
    assert model.widths[:2] == [len(reference.PROMPT) - 1, 1]
    found = model.widths[2 : 2 + len(MEASURING)] == MEASURING
    assert found or 9 not in model.widths[2:]
    return found


def drafts() -> DraftModel:
    return DraftModel(reference.get("small_dense").model)


def test_what_was_measured_is_found_again_by_another_strategy(tmp_path: Path) -> None:
    model = Named(reference.get("dense").model)
    strategy = Adaptive(drafts(), PromptLookup(), cache_folder=tmp_path)
    assert measured(model, strategy)
    assert not measured(model, strategy)
    assert strategy.plain_seconds > 0
    fresh = Adaptive(drafts(), PromptLookup(), cache_folder=tmp_path)
    assert not measured(model, fresh)
    assert measured(model, Adaptive(drafts(), PromptLookup(), cache_folder=tmp_path / "other"))


def test_another_model_and_other_proposers_are_measured_for_themselves(tmp_path: Path) -> None:
    model = Named(reference.get("dense").model)
    assert measured(model, Adaptive(drafts(), cache_folder=tmp_path))
    for other in (
        Adaptive(drafts(), PromptLookup(), cache_folder=tmp_path),
        Adaptive(DraftModel(reference.get("qwen3_5").model), cache_folder=tmp_path),
    ):
        assert measured(model, other)
    assert measured(Named(model.inner, "other weights"), Adaptive(drafts(), cache_folder=tmp_path))
    assert not measured(model, Adaptive(drafts(), cache_folder=tmp_path))


def test_a_short_text_and_one_without_a_clock_measure_nothing(tmp_path: Path) -> None:
    model = Named(reference.get("dense").model)
    strategy = Adaptive(drafts(), cache_folder=tmp_path)
    assert not measured(model, strategy, PROBE_MIN_TOKENS - 1)
    assert not measured(model, Adaptive(drafts(), cache_folder=tmp_path, measure=False))
    assert not measured(model, Adaptive(drafts(), cache_folder=tmp_path, clock="fixed"))
    assert not measured(model, Adaptive(cache_folder=tmp_path))
    assert list(tmp_path.iterdir()) == []
    assert measured(model, strategy, PROBE_MIN_TOKENS)


# It waits until the first token is out.


@pytest.mark.parametrize("known", [False, True])
def test_the_first_token_waits_for_no_probe_and_for_no_head(known: bool, tmp_path: Path) -> None:
    text = [*reference.PROMPT, *reference.truth("dense", reference.PROMPT, 20)]
    adapted, head = with_knowing_head("dense", text)
    model = Named(adapted.model)
    # A head that is always right and costs nothing would draft at once.
    costs = Costs(0, {1: 0.01, 9: 0.0101}, {"mtp": 0.0})
    strategy = (
        Adaptive(MTPChain(), costs=costs, clock="fixed")
        if known
        else Adaptive(MTPChain(), PromptLookup(), cache_folder=tmp_path)
    )
    decoder = Decoder(model, strategy)
    running = decoder.generate(reference.PROMPT, -1)
    tokens = [next(running)]
    assert model.widths == [len(reference.PROMPT) - 1, 1]
    assert head.widths == []
    tokens += islice(running, 9)
    running.close()
    assert (9 in model.widths) is not known
    assert head.widths
    reference.check_tokens("dense", reference.PROMPT, tokens)


def test_a_text_of_one_token_and_one_that_is_closed_then_measure_nothing(tmp_path: Path) -> None:
    model = Named(reference.get("dense").model)
    strategy = Adaptive(drafts(), cache_folder=tmp_path)
    running = Decoder(model, strategy).generate(reference.PROMPT, -1)
    next(running)
    running.close()
    assert 9 not in model.widths
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("emitted", [1, 2, 3])
def test_settled_before_and_after_it(emitted: int, tmp_path: Path) -> None:
    caches = reference.stock_caches("qwen3_5")
    model = Named(reference.get("qwen3_5").model)
    decoder = Decoder(model, Adaptive(drafts(), PromptLookup(), cache_folder=tmp_path))
    running = decoder.generate(reference.PROMPT, -1, caches)
    tokens = list(islice(running, emitted))
    decoder.settle()
    reference.check_holds("qwen3_5", caches, [*reference.PROMPT, *reference.ids_of(tokens)])
    tokens += islice(running, 10 - emitted)
    running.close()
    reference.check_tokens("qwen3_5", reference.PROMPT, tokens)
    reference.check_holds("qwen3_5", caches, [*reference.PROMPT, *reference.ids_of(tokens)])
    assert model.widths.count(9) == 1 + REPEATS


# What raises meanwhile.


def failing(place: str, at: int) -> tuple[WatchedProposer, Ticker]:
    """A perfect proposer that raises at one of its calls."""
    text = [*reference.PROMPT, *reference.truth("dense", reference.PROMPT, 24)]
    ticker = Ticker(place, at)
    script = ScriptedProposer(text, vocab_size=tiny.VOCAB)
    return WatchedProposer(script, ticker), ticker


def reports(caplog: pytest.LogCaptureFixture) -> int:
    return sum("raised" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(("place", "at"), [("propose", 1), ("propose", 5), ("settle", 2)])
def test_a_proposer_that_raises_while_it_is_measured_is_left_alone(
    place: str, at: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken, ticker = failing(place, at)
    small = WatchedProposer(drafts())
    strategy = Adaptive(broken, small, cache_folder=tmp_path)
    decoder = Decoder(Named(reference.get("dense").model), strategy)
    with caplog.at_level(logging.WARNING, logger="speculate"):
        running = decoder.generate(reference.PROMPT, -1)
        tokens = list(islice(running, 20))
        running.close()
    reference.check_tokens("dense", reference.PROMPT, tokens)
    assert reports(caplog) == 1
    assert ticker.calls[place] == at
    assert {token.proposer for token in tokens} <= {"draft", None}
    (file,) = (tmp_path / "costs").iterdir()
    assert '"scripted"' not in file.read_text()
    # In the next text it takes part again.
    tokens = list(decoder.generate(reference.PROMPT, 8))
    reference.check_tokens("dense", reference.PROMPT, tokens)
    assert ticker.calls["propose"] > at or ticker.calls["commit"] > 1


def test_one_that_raised_over_the_prompt_is_not_measured(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken, ticker = failing("commit", 1)
    strategy = Adaptive(broken, drafts(), cache_folder=tmp_path)
    decoder = Decoder(Named(reference.get("dense").model), strategy)
    with caplog.at_level(logging.WARNING, logger="speculate"):
        running = decoder.generate(reference.PROMPT, -1)
        tokens = list(islice(running, 20))
        running.close()
    reference.check_tokens("dense", reference.PROMPT, tokens)
    assert reports(caplog) == 1
    assert ticker.calls["propose"] == 0
    assert strategy.plain_seconds > 0


@pytest.mark.parametrize("at", [2, 3, 4, 9, 16])
def test_a_target_that_fails_while_it_is_measured_leaves_what_was_emitted(
    at: int, tmp_path: Path
) -> None:
    ticker = Ticker("forward", at)
    model = Named(reference.get("gpt_oss").model, tick=ticker)
    caches = reference.stock_caches("gpt_oss")
    decoder = Decoder(model, Adaptive(drafts(), cache_folder=tmp_path))
    prompt = reference.text_of(12)
    tokens: list[Token] = []
    with pytest.raises(Broken):
        for token in decoder.generate(prompt, -1, caches):
            tokens.append(token)
    # Two forwards come in front: over the prompt, and for the first token.
    assert len(tokens) == (at > 2)
    text = [*prompt, *reference.ids_of(tokens)]
    pending = decoder.pending
    assert pending in (None, text[-1])
    reference.check_holds("gpt_oss", caches, text if pending is None else text[:-1])
    assert list(tmp_path.iterdir()) == []
    tokens = list(decoder.generate(prompt, 8))
    reference.check_tokens("gpt_oss", prompt, tokens)
