"""What is counted, by the definitions of the field, and what a token says of itself."""

from __future__ import annotations

import time
from itertools import product

import mlx.core as mx
import pytest
from mlx import nn

from speculate import Decoder, Fixed, Off, Stats
from speculate.protocols import Round
from speculate.testing import ScheduledStrategy, ScriptedProposer
from tests.support import reference, tiny
from tests.support.recording import WatchedProposer


def test_counters_of_a_written_out_example() -> None:
    stats = Stats()
    for index, (accepted, drafted) in enumerate([(2, 3), (0, 3), (3, 3), (1, 1)]):
        stats.count(Round(index, "one", drafted, drafted, accepted, accepted + 1, False))
    stats.count(Round(4, None, 0, 0, 0, 1, False))
    assert (stats.draft_tokens, stats.accepted_tokens, stats.drafts) == (10, 6, 4)
    assert stats.rounds == 5
    assert stats.total.drafted_per_position == [4, 3, 3]
    assert stats.accepted_per_position == [3, 2, 1]
    assert stats.mean_acceptance_length == 1 + 6 / 4
    assert stats.acceptance_rate == stats.by_proposer["one"].acceptance_rate == 6 / 10
    assert stats.by_proposer["one"].accepted_per_position == [3, 2, 1]


def test_counters_of_that_example_decoded() -> None:
    script = reference.scripted("dense", reference.PROMPT, 16, lambda n: (2, 0, None, None)[n % 4])
    strategy = ScheduledStrategy([(script, k) for k in (3, 3, 3, 1)])
    rounds: list[Round] = []
    decoder = Decoder(reference.get("dense").model, strategy, observer=rounds.append)
    tokens = list(decoder.generate(reference.PROMPT, 10))
    stats = decoder.stats
    assert [(r.accepted, r.drafted) for r in rounds] == [(2, 3), (0, 3), (3, 3), (1, 1)]
    assert [r.emitted for r in rounds] == [3, 1, 4, 2]
    assert [r.index for r in rounds] == [0, 1, 2, 3]
    assert [r.truncated for r in rounds] == [False, False, False, True]
    assert rounds == strategy.rounds
    assert (stats.draft_tokens, stats.accepted_tokens, stats.drafts) == (10, 6, 4)
    assert stats.emitted_tokens == len(tokens) == 10
    assert stats.prompt_tokens == len(reference.PROMPT)
    assert stats.accepted_tokens == sum(t.from_draft for t in tokens)


@pytest.mark.parametrize("depth", [0, 2])
def test_rounds_without_drafts_count_no_draft(depth: int) -> None:
    script = reference.scripted("dense", reference.PROMPT, 10, reference.always(0))
    decoder = Decoder(reference.get("dense").model, Fixed(script, depth))
    list(decoder.generate(reference.PROMPT, 6))
    stats = decoder.stats
    assert (stats.rounds, stats.accepted_tokens) == (6, 0)
    # The budget leaves no room for drafts in the last round.
    assert stats.drafts == (5 if depth else 0)
    assert stats.mean_acceptance_length == 1.0
    assert stats.acceptance_rate == 0.0


def test_counters_are_of_the_latest_call() -> None:
    script = reference.scripted("dense", reference.PROMPT, 10, reference.always(None))
    decoder = Decoder(reference.get("dense").model, Fixed(script, 2))
    list(decoder.generate(reference.PROMPT, 6))
    first = decoder.stats
    assert first.emitted_tokens == 6
    running = decoder.generate(reference.PROMPT, 4)
    assert decoder.stats is first
    next(running)
    assert decoder.stats.emitted_tokens == 1
    assert first.emitted_tokens == 6
    running.close()
    assert decoder.stats.rounds == 1


@pytest.mark.parametrize("emitted", range(1, 6))
def test_a_round_that_was_broken_off_counts_what_came_out(emitted: int) -> None:
    script = reference.scripted("dense", reference.PROMPT, 10, reference.always(None))
    rounds: list[Round] = []
    decoder = Decoder(reference.get("dense").model, Fixed(script, 4), observer=rounds.append)
    running = decoder.generate(reference.PROMPT, 10)
    tokens = [next(running) for _ in range(emitted)]
    running.close()
    assert sum(r.emitted for r in rounds) == emitted
    assert decoder.stats.accepted_tokens == sum(t.from_draft for t in tokens)
    assert decoder.stats.draft_tokens == 4


def test_progress_is_reported_as_in_plain_decoding() -> None:
    reports: list[tuple[int, int]] = []
    decoder = Decoder(
        reference.get("dense").model,
        Off(),
        prefill_step_size=4,
        prompt_progress_callback=lambda done, total: reports.append((done, total)),
    )
    list(decoder.generate(reference.text_of(11), 3))
    assert reports == [(0, 11), (4, 11), (8, 11), (10, 11), (11, 11)]


# What a token says of itself.


def test_who_drafted_a_token() -> None:
    script = reference.scripted("dense", reference.PROMPT, 12, lambda n: (1, None)[n % 2])
    tokens = reference.decode("dense", Fixed(script, 3), count=12)
    kinds = [(t.from_draft, t.proposer) for t in tokens]
    drafted, own = (True, "scripted"), (False, None)
    assert kinds[:6] == [drafted, own, drafted, drafted, drafted, own]
    assert {t.finish_reason for t in tokens[:-1]} == {None}


@pytest.mark.parametrize("name", [*reference.PROMISED, "lfm2"])
def test_scores_are_the_targets_for_accepted_rejected_and_bonus_tokens(name: str) -> None:
    script = reference.scripted(name, reference.PROMPT, 12, lambda n: (1, None, 0)[n % 3])
    tokens = reference.decode(name, Fixed(script, 3), count=12)
    plain = reference.decode(name, Off(), count=12)
    steps = reference.stock_scores(name, reference.PROMPT, 12)
    assert {t.logprobs.dtype for t in tokens} == {mx.float32}
    assert {t.logprobs.shape for t in tokens} == {(tiny.VOCAB,)}
    for token, single, stock in zip(tokens, plain, steps, strict=True):
        assert mx.array_equal(token.logprobs, single.logprobs).item()
        # Its single steps rotate a window that has wrapped, and add up in another order.
        within = 1e-4 if name == "gpt_oss" else 1e-5
        assert mx.allclose(token.logprobs, stock, rtol=0, atol=within).item()
        assert mx.allclose(mx.exp(token.logprobs).sum(), mx.array(1.0)).item()
    # They can be read when the run is long over, and the caches have gone on.
    reference.check_tokens(name, reference.PROMPT, tokens)


# Which token.


def twins() -> nn.Module:
    """A model to which each id below 32 is exactly as likely as the one 32 above."""
    stock = tiny.dense_untied()
    table = stock.lm_head.weight
    stock.lm_head.weight = mx.concatenate([table[:32], table[:32]])
    mx.eval(stock.parameters())
    return stock


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_ties_go_to_the_lowest_id_in_blocks_and_single_steps(depth: int) -> None:
    stock = twins()
    expected = reference.stock_ids(stock, reference.PROMPT, 24)
    assert max(expected) < 32
    for wrong in (None, 0, "each"):
        script = ScriptedProposer(
            [*reference.PROMPT, *expected], reference.always(wrong), vocab_size=64
        )
        decoder = Decoder(reference.adapted(stock).model, Fixed(script, depth))
        assert reference.ids_of(decoder.generate(reference.PROMPT, 24)) == expected


def test_a_draft_of_the_other_of_two_tied_tokens_is_wrong() -> None:
    stock = twins()
    expected = reference.stock_ids(stock, reference.PROMPT, 10)
    other = [*reference.PROMPT, *(id_ + 32 for id_ in expected)]
    decoder = Decoder(
        reference.adapted(stock).model, Fixed(ScriptedProposer(other, vocab_size=64), 3)
    )
    assert reference.ids_of(decoder.generate(reference.PROMPT, 10)) == expected
    assert decoder.stats.accepted_tokens == 0


HALF = list(product((0, 3), (None, "each")))


@pytest.mark.parametrize(("depth", "wrong"), HALF, ids=str)
@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16], ids=["bfloat16", "float16"])
def test_half_precision_takes_what_plain_decoding_takes(
    depth: int, wrong: object, dtype: mx.Dtype
) -> None:
    stock = tiny.dense_untied(seed=2)
    # Flat enough that normalising makes ties that the logits do not have.
    stock.lm_head.weight = stock.lm_head.weight * 0.02
    stock.set_dtype(dtype)
    expected = reference.stock_ids(stock, reference.PROMPT, 24)
    watched = WatchedProposer(
        ScriptedProposer([*reference.PROMPT, *expected], reference.always(wrong), vocab_size=64)
    )
    decoder = Decoder(reference.adapted(stock).model, Fixed(watched, depth))
    tokens = list(decoder.generate(reference.PROMPT, 24))
    assert reference.ids_of(tokens) == expected
    assert {t.logprobs.dtype for t in tokens} == {mx.float32}
    # In bfloat16 the most likely token after rounding is often another one than before.
    unrounded = [mx.argmax(t.logprobs).item() for t in tokens]
    assert (unrounded != expected) == (dtype == mx.bfloat16)


def test_a_round_says_how_long_the_device_had_for_it_before_anybody_asked() -> None:
    script = reference.scripted("dense", reference.PROMPT, 16, lambda n: None)
    strategy = ScheduledStrategy([(script, k) for k in (0, 0, 2, 0, 0, 0)])
    rounds: list[Round] = []
    decoder = Decoder(reference.get("dense").model, strategy, observer=rounds.append)
    for _ in decoder.generate(reference.PROMPT, 8):
        time.sleep(0.02)
    # A step is launched with a plain one before it, and not with drafts.
    launched = [False, True, False, False, True, True]
    assert [round.drafted for round in rounds] == [0, 0, 2, 0, 0, 0]
    assert [round.overlapped_seconds >= 0.02 for round in rounds] == launched
    assert [round.overlapped_seconds == 0.0 for round in rounds] == [not one for one in launched]


def test_a_repr_shows_the_counters_that_matter() -> None:
    stats = Stats(prompt_tokens=5, emitted_tokens=3, seed=7)
    stats.count(Round(0, "mtp", 2, 2, accepted=1, emitted=2, truncated=False, seconds=0.5))
    stats.count(Round(1, None, 0, 0, accepted=0, emitted=1, truncated=False, seconds=0.25))
    assert repr(stats) == (
        "Stats(prompt_tokens=5, emitted_tokens=3, rounds=2, draft_tokens=2, accepted_tokens=1, "
        "acceptance_rate=0.50, mean_acceptance_length=2.00, seconds=0.75, seed=7, "
        "proposers=['mtp'])"
    )
