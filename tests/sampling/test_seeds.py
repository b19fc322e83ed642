"""Mode "coupled": the same seed gives the same tokens for every proposer and depth."""

from __future__ import annotations

import random
from collections.abc import Generator
from itertools import product
from typing import Final

import attrs
import mlx.core as mx
import pytest

from speculate import Decoder, DraftModel, Fixed, MTPChain, Off, Sampling, Token
from speculate.protocols import Proposer
from speculate.sampling.options import MODES, Mode
from speculate.testing import ScheduledStrategy
from tests.support import reference, tiny
from tests.support.drafters import (
    COUNT,
    NAMES,
    OPTIONS,
    PROMPT,
    TEMPERATURES,
    Case,
    headed,
    strategy_for,
    text_of,
)
from tests.support.table_models import TableHead, TableModel, table, to_mx

EVERYONE: Final = random.Random(0).sample(
    list(product((*reference.PROMISED, *tiny.MORE), TEMPERATURES, OPTIONS, NAMES)), 800
)


def decoded(case: Case, who: str, count: int = COUNT) -> list[int]:
    text = [*PROMPT, *text_of(case)]
    decoder = Decoder(headed(case, text), strategy_for(who, case, text), case.sampling)
    return reference.ids_of(decoder.generate(PROMPT, count))


@pytest.mark.parametrize("case", reference.sampled(EVERYONE, 32, seed=1))
def test_the_text_is_the_seed_s_with_any_proposer(case: tuple[str, float, str, str]) -> None:
    family, temperature, name, who = case
    one = Case(family, temperature, name, seed=len(who) + int(10 * temperature))
    assert decoded(one, who) == text_of(one)


@pytest.mark.parametrize("family", reference.PROMISED)
def test_another_proposer_in_every_round_changes_nothing(family: str) -> None:
    case = Case(family, 1.0, "all")
    assert decoded(case, "switching") == text_of(case)


@pytest.mark.parametrize("family", reference.PROMISED)
def test_different_seeds_give_different_texts(family: str) -> None:
    assert text_of(Case(family, 1.0, "plain", seed=1)) != text_of(
        Case(family, 1.0, "plain", seed=2)
    )


def test_a_shorter_budget_gives_the_beginning_of_the_same_text() -> None:
    case = Case("qwen3_5", 1.0, "plain")
    for count in (1, 2, 5, 6):
        assert decoded(case, "twin 4", count) == text_of(case)[:count]


@pytest.mark.parametrize("family", reference.PROMISED)
def test_a_second_turn_over_the_same_cache_is_the_seed_s_too(family: str) -> None:
    case = Case(family, 1.0, "top_p")
    turns: list[list[int]] = []
    for who in ("nobody", "cousin 3", "twin 4"):
        text = [*PROMPT, *text_of(case)]
        decoder = Decoder(case.model, strategy_for(who, case, text), case.sampling)
        caches = reference.stock_caches(family)
        first = reference.ids_of(decoder.generate(PROMPT, 9, caches))
        second = reference.ids_of(decoder.generate(reference.SECOND, 9, caches))
        turns.append([*first, *second])
    assert turns[0] == turns[1] == turns[2]
    # And the noise goes on: it is keyed by the position in the whole text.
    whole = [*PROMPT, *turns[0][:9], *reference.SECOND]
    fresh = Decoder(case.model, Off(), case.sampling).generate(whole, 9)
    assert reference.ids_of(fresh) == turns[0][9:]


def test_a_second_turn_by_a_fresh_decoder_goes_on_at_the_right_position() -> None:
    case = Case("dense", 1.0, "plain")
    caches = reference.stock_caches("dense")
    first = reference.ids_of(Decoder(case.model, Off(), case.sampling).generate(PROMPT, 5, caches))
    text = [*PROMPT, *text_of(case)]
    again = Decoder(case.model, strategy_for("cousin 3", case, text), case.sampling)
    second = reference.ids_of(again.generate(reference.SECOND, 9, caches))
    whole = Decoder(case.model, Off(), case.sampling).generate(
        [*PROMPT, *first, *reference.SECOND], 9
    )
    assert second == reference.ids_of(whole)


@pytest.mark.parametrize("who", ["nobody", "cousin 4", "right 5"])
def test_settling_again_and_again_changes_nothing(who: str) -> None:
    case = Case("qwen3_5", 1.0, "plain")
    text = [*PROMPT, *text_of(case)]
    decoder = Decoder(case.model, strategy_for(who, case, text), case.sampling)
    found: list[int] = []
    for token in decoder.generate(PROMPT, COUNT):
        found.append(token.id)
        if len(found) % 3 != 1:
            decoder.settle()
    assert found == text_of(case)


@pytest.mark.parametrize("mode", MODES)
def test_settling_in_the_middle_of_a_block_draws_nothing_again(mode: Mode) -> None:
    case = Case("qwen3_5", 1.0, "plain")
    sampling = attrs.evolve(case.sampling, mode=mode)

    def start() -> tuple[Decoder, Generator[Token, None, None]]:
        decoder = Decoder(case.model, strategy_for("cousin 4", case, []), sampling)
        return decoder, decoder.generate(PROMPT, COUNT)

    straight = list(start()[1])
    accepted = [place for place, token in enumerate(straight) if token.from_draft]
    assert len(accepted) > 2
    for place in accepted[:3]:
        decoder, running = start()
        found = [next(running).id for _ in range(place + 1)]
        decoder.settle()
        # After an accepted draft there is one more token in its block at least.
        assert [*found, next(running).id] == reference.ids_of(straight)[: place + 2]
        running.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_run_without_a_seed_reports_one_that_repeats_it(mode: Mode) -> None:
    case = Case("dense", 1.0, "plain")

    def run(seed: int | None) -> tuple[list[int], int | None]:
        sampling = Sampling(temperature=1.0, mode=mode, seed=seed)
        decoder = Decoder(case.model, strategy_for("cousin 3", case, []), sampling)
        return reference.ids_of(decoder.generate(PROMPT, COUNT)), decoder.stats.seed

    (first, seed), (other, another) = run(None), run(None)
    assert seed is not None
    assert another is not None
    assert seed != another
    assert run(seed) == (first, seed)
    assert run(another) == (other, another)


def test_one_decoder_draws_a_fresh_seed_for_each_text() -> None:
    case = Case("dense", 1.0, "plain")
    decoder = Decoder(case.model, Off(), Sampling(temperature=1.0))
    seeds = set()
    for _ in range(3):
        list(decoder.generate(PROMPT, 2))
        seeds.add(decoder.stats.seed)
    assert len(seeds) == 3


@pytest.mark.parametrize("seed", [0, 5, -3, 2**80])
def test_the_seed_that_was_asked_for_is_reported_and_zero_is_one(seed: int) -> None:
    case = Case("dense", 1.0, "plain")
    decoder = Decoder(case.model, Off(), Sampling(temperature=1.0, seed=seed))
    texts = [reference.ids_of(decoder.generate(PROMPT, 6)) for _ in range(2)]
    assert texts[0] == texts[1]
    assert decoder.stats.seed == seed


def test_nothing_drawn_means_no_seed() -> None:
    decoder = Decoder(reference.get("dense").model, Off(), Sampling(seed=3))
    list(decoder.generate(PROMPT, 2))
    assert decoder.stats.seed is None


@pytest.mark.parametrize("mode", MODES)
def test_one_text_does_not_disturb_another(mode: Mode) -> None:
    """Two decoders in turn, the global generator stirred in between."""
    case = Case("dense", 1.0, "plain")
    sampling = attrs.evolve(case.sampling, mode=mode)

    def start() -> Decoder:
        return Decoder(case.model, strategy_for("cousin 2", case, []), sampling)

    alone = reference.ids_of(start().generate(PROMPT, 10))
    found: list[list[int]] = [[], []]
    running = [start().generate(PROMPT, 10), start().generate(PROMPT, 10)]
    for pair in zip(*running, strict=True):
        mx.random.seed(len(found[0]))
        mx.eval(mx.random.normal((3,)))
        for one, token in zip(found, pair, strict=True):
            one.append(token.id)
    assert found == [alone, alone]


def test_a_text_closed_early_does_not_disturb_the_next() -> None:
    case = Case("qwen3_5", 1.0, "plain")
    decoder = Decoder(case.model, strategy_for("cousin 4", case, []), case.sampling)
    running = decoder.generate(PROMPT, COUNT)
    for _ in range(3):
        next(running)
    running.close()
    assert reference.ids_of(decoder.generate(PROMPT, COUNT)) == text_of(case)


@pytest.mark.parametrize("padding", [-2, 2])
def test_a_draft_whose_vocabulary_is_padded_otherwise_loses_no_acceptance(padding: int) -> None:
    """A token's noise does not depend on other columns, and padding is never drafted."""
    width = 16
    logits = table(3, width)
    logits[:, 14:] = -1e9
    padded = mx.pad(to_mx(logits), [(0, 2), (0, 2)], constant_values=9.0)
    target = TableModel(to_mx(logits))
    draft = TableModel(padded[:, : width + padding])
    decoder = Decoder(target, Fixed(DraftModel(draft), 4), Sampling(temperature=1.0, seed=1))
    list(decoder.generate([1, 2, 3], 60))
    assert decoder.stats.accepted_tokens == decoder.stats.draft_tokens


@pytest.mark.parametrize("name", ["plain", "top_k", "top_p", "min_p", "xtc"])
def test_a_draft_with_the_target_s_own_distribution_is_always_right(name: str) -> None:
    """Filters and XTC's coins fall on both alike."""
    case = Case("qwen3_5", 1.0, name)
    decoder = Decoder(case.model, strategy_for("twin 4", case, []), case.sampling)
    list(decoder.generate(PROMPT, COUNT))
    assert decoder.stats.accepted_tokens == decoder.stats.draft_tokens


@pytest.mark.soak
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_ten_thousand_seeds_through_the_decoder(temperature: float) -> None:
    target = to_mx(table(1))
    head, draft = TableHead(to_mx(table(2))), TableModel(to_mx(0.7 * table(1) + 0.7 * table(3)))
    model = TableModel(target, head)
    chain, drafter = MTPChain(), DraftModel(draft)
    plans: list[tuple[Proposer, int]] = [
        (chain, 3),
        (drafter, 2),
        (chain, 0),
        (drafter, 4),
        (chain, 1),
    ]
    for seed in range(2500):
        sampling = Sampling(temperature=temperature, seed=seed)
        plain = Decoder(TableModel(target), Off(), sampling).generate([1, 2], 12)
        mixed = Decoder(model, ScheduledStrategy(plans), sampling).generate([1, 2], 12)
        assert reference.ids_of(mixed) == reference.ids_of(plain), seed
