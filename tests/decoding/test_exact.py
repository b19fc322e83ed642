"""Whoever drafts, and wherever it is wrong: the text, the scores and the caches are plain's."""

from __future__ import annotations

from itertools import product

import pytest

from speculate import Decoder, Fixed
from speculate.protocols import Round
from speculate.testing import RecordingObserver, ScheduledStrategy
from tests.support import reference, tiny
from tests.support.recording import WatchedModel

DEPTHS = (4, 0, 1, 2, 7)
PROMPTS = (1, 2, tiny.WINDOW - 1, tiny.WINDOW, tiny.WINDOW + 1, 3 * tiny.WINDOW)
WRONG = (None, 0, 1, 2, 3, 4, 5, 6, "each")
PAST_TWO_WINDOWS = 2 * tiny.WINDOW + 4


@pytest.mark.parametrize(
    "case", reference.sampled(product((*reference.PROMISED, *tiny.MORE), WRONG, PROMPTS), 24)
)
def test_every_token_scores_as_after_a_cold_prefill(case: tuple[str, object, int]) -> None:
    name, wrong, length = case
    prompt = reference.text_of(length)
    proposer = reference.scripted(name, prompt, PAST_TWO_WINDOWS, reference.always(wrong))
    caches = reference.stock_caches(name)
    strategy = ScheduledStrategy([(proposer, k) for k in DEPTHS])
    tokens = reference.decode(name, strategy, prompt, PAST_TWO_WINDOWS, caches)
    reference.check_tokens(name, prompt, tokens)
    reference.check_holds(name, caches, [*prompt, *reference.ids_of(tokens)])


@pytest.mark.parametrize("name", [*reference.PROMISED, "lfm2"])
def test_a_rollback_right_after_another_returns_to_the_right_point(name: str) -> None:
    wrong = (0, 0, 2, 0, None, 0)
    proposer = reference.scripted(name, reference.PROMPT, 18, lambda n: wrong[n % len(wrong)])
    caches = reference.stock_caches(name)
    tokens = reference.decode(name, Fixed(proposer, 3), count=18, caches=caches)
    reference.check_tokens(name, reference.PROMPT, tokens)
    reference.check_holds(name, caches, [*reference.PROMPT, *reference.ids_of(tokens)])


@pytest.mark.parametrize("name", [*reference.PROMISED, "lfm2"])
def test_drafts_deeper_than_caches_record_are_exact(name: str) -> None:
    count, wrong = 150, (70, 30, None)
    proposer = reference.scripted(name, reference.PROMPT, count, lambda n: wrong[n % len(wrong)])
    caches, rounds = reference.stock_caches(name), RecordingObserver()
    strategy = ScheduledStrategy([(proposer, 90)] * count)
    decoder = Decoder(reference.get(name).model, strategy, observer=rounds)
    tokens = list(decoder.generate(reference.PROMPT, count, caches))
    assert [round.accepted for round in rounds.rounds[:2]] == [70, 30]
    reference.check_tokens(name, reference.PROMPT, tokens, within=1e-4)
    reference.check_holds(name, caches, [*reference.PROMPT, *reference.ids_of(tokens)])


@pytest.mark.parametrize("length", reference.sampled(range(1, 13), 4))
def test_a_rejection_where_the_window_fills_changes_nothing(length: int) -> None:
    prompt = reference.text_of(length, seed=1)
    for depth, wrong in [(1, 0), (2, 1), (4, 0), (4, 1), (4, 2), (4, 3)]:
        proposer = reference.scripted("gpt_oss", prompt, 2 * depth + 2, reference.always(wrong))
        tokens = reference.decode("gpt_oss", Fixed(proposer, depth), prompt, 2 * depth + 2)
        reference.check_tokens("gpt_oss", prompt, tokens)


@pytest.mark.parametrize("depths", [(4, 1, 2), (3, 0, 0, 2)])
@pytest.mark.parametrize("name", reference.PROMISED)
def test_after_each_round_every_layer_is_as_long_as_the_text(
    name: str, depths: tuple[int, ...]
) -> None:
    model = WatchedModel(reference.get(name).model)
    proposer = reference.scripted(name, reference.PROMPT, 20, reference.always("each"))
    strategy = ScheduledStrategy([(proposer, k) for k in depths])
    fed = [len(reference.PROMPT) - 1]

    def compare(round: Round) -> None:
        fed[0] += round.emitted
        # A round without drafts has launched the next step already.
        ahead = 0 if round.drafted else 1
        assert model.lengths() in ({fed[0]}, {fed[0] + ahead})

    decoder = Decoder(model, strategy, observer=compare)
    assert reference.ids_of(decoder.generate(reference.PROMPT, 20)) == reference.truth(
        name, reference.PROMPT, 20
    )
    assert decoder.stats.rounds > 7


@pytest.mark.parametrize("name", reference.PROMISED)
@pytest.mark.parametrize(
    "count", [40, pytest.param(500, marks=pytest.mark.soak)], ids=["short", "long"]
)
def test_a_rejection_in_every_round_leaves_no_trace(name: str, count: int) -> None:
    proposer = reference.scripted(name, reference.PROMPT, count, lambda n: n % 2)
    caches = reference.stock_caches(name)
    decoder = Decoder(reference.get(name).model, Fixed(proposer, 2))
    tokens = list(decoder.generate(reference.PROMPT, count, caches))
    # Cold prefills of a long text need as long as the run.
    reference.check_tokens(name, reference.PROMPT, tokens)
    reference.check_holds(name, caches, [*reference.PROMPT, *reference.ids_of(tokens)])
    assert decoder.stats.accepted_tokens < decoder.stats.draft_tokens / 1.9


@pytest.mark.parametrize("name", [*reference.PROMISED, "lfm2"])
def test_the_deepest_drafts_are_rolled_back_exactly(name: str) -> None:
    deepest = 48
    proposer = reference.scripted(name, reference.PROMPT, 60, lambda n: (0, 23, 46)[n % 3])
    tokens = reference.decode(name, Fixed(proposer, deepest), count=60)
    reference.check_tokens(name, reference.PROMPT, tokens)


STEPS = (1, 3, 4, 5, 7, 10, 11)


@pytest.mark.parametrize(
    "case", reference.sampled(product((*reference.PROMISED, "lfm2"), STEPS), 8)
)
def test_chunks_of_prefill_do_not_change_the_first_scores(case: tuple[str, int]) -> None:
    name, step = case
    prompt = reference.text_of(11)
    proposer = reference.scripted(name, prompt, 6, reference.always(1))
    caches = reference.stock_caches(name)
    decoder = Decoder(reference.get(name).model, Fixed(proposer, 3), prefill_step_size=step)
    tokens = list(decoder.generate(prompt, 6, caches))
    reference.check_tokens(name, prompt, tokens)
    reference.check_holds(name, caches, [*prompt, *reference.ids_of(tokens)])


@pytest.mark.parametrize("name", ["qwen3_5", "dense", "gpt_oss"])
def test_drafts_rolled_back_where_a_buffer_grows_or_moves(name: str) -> None:
    # Rows come in buffers of 256, and a window of 8 moves to the front after 128 more.
    count = 150 if name == "gpt_oss" else 12
    prompt = reference.text_of(3 if name == "gpt_oss" else 250)
    proposer = reference.scripted(name, prompt, count, reference.always("each"))
    caches = reference.stock_caches(name)
    tokens = reference.decode(name, Fixed(proposer, 4), prompt, count, caches)
    reference.check_tokens(name, prompt, tokens)
    reference.check_holds(name, caches, [*prompt, *reference.ids_of(tokens)])
