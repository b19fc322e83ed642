"""Each planted mistake is found, by the check that it belongs to; and rounding is told from it."""

from __future__ import annotations

import math
from typing import Any, Final

import mlx.core as mx
import pytest

import speculate as sp
from speculate import Decoder, Fixed, Sampling, verify
from speculate._mx import ulp
from speculate.backends.group import CacheGroup
from speculate.loading import demo_prompt
from speculate.sampling import acceptance
from speculate.testing import ToyHead, ToyModel
from speculate.verify.decoding_checks import MAX_DIFFERENCES, compare_decoding
from speculate.verify.oracle import reference_token
from speculate.verify.rounding import Rounding
from tests.faults.planting import recorded_as
from tests.support import tiny
from tests.support.reference import adapted, get
from tests.support.verify_subjects import (
    TEXT,
    TOKENS,
    Around,
    Forgetful,
    InBlocks,
    ShiftedWindow,
    drafters,
    hybrid,
    next_numbers,
    outcomes,
    second_best,
    subject,
    verified,
    with_ties,
    wrong,
)

ALL: Final = {"forward", "tails", "rewind", "sequence", "acceptance", "seed"}


def test_a_model_without_a_mistake_passes_every_check() -> None:
    found = verified(subject(hybrid().model))
    assert outcomes(found) == {check: {"OK"} for check in ALL}
    assert all(any(result.compared for result in results) for results in found.values())


@pytest.mark.parametrize("name", ["gpt_oss", "lfm2", "qwen3_5_folded"])
def test_every_kind_of_cache_passes(name: str) -> None:
    found = verified(subject(get(name).model, tokens=3), "forward", "tails", "rewind", "sequence")
    assert not wrong(found) and {"NUMERICS"} not in outcomes(found).values()


def test_a_model_that_drives_none_of_mlx_lms_is_compared_with_itself() -> None:
    model = ToyModel(head=ToyHead(), vocab_size=tiny.VOCAB)
    found = verified(subject(model, tokens=3))
    assert outcomes(found) == {check: {"OK"} for check in ALL - {"forward"}}


def test_a_forward_that_shifts_a_window_by_one() -> None:
    found = verified(subject(ShiftedWindow(hybrid().model)), "forward", "tails")
    assert wrong(found) == {"forward"}
    assert found["forward"][0].differences[0].position == len(TEXT[:32])


def test_a_rewind_that_shifts_a_window_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded_as(
        monkeypatch,
        lambda _, restore, old: (lambda m: (restore(m + 1)[0], restore(m)[1]), old),
    )
    found = verified(subject(hybrid().model), "forward", "tails", "rewind")
    assert wrong(found) == {"tails", "rewind"}


def test_a_rewind_that_keeps_one_token_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    keep = CacheGroup.keep
    monkeypatch.setattr(CacheGroup, "keep", lambda self, m: keep(self, min(m + 1, self.fed())))
    found = verified(subject(hybrid().model), "forward", "tails", "rewind")
    assert wrong(found) == {"tails", "rewind"}
    assert "0 kept of a block of 1" in found["rewind"][0].differences[0].detail


def test_a_head_that_drafts_otherwise_online() -> None:
    head = hybrid().model.head
    assert head is not None
    model = adapted(hybrid().module, Forgetful(head, lambda n: n % 2 == 0)).model
    found = verified(subject(model), "tails", "sequence", "acceptance")
    assert wrong(found) == {"acceptance"}
    assert [result.outcome for result in found["acceptance"]] == ["BUG", "OK", "OK"] * 2


def test_a_sampler_that_uses_numbers_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(keys: list[Any], width: int) -> mx.array:
        return mx.random.gumbel((len(keys), width))

    monkeypatch.setattr(acceptance, "gumbel", drawn)
    found = verified(subject(hybrid().model), "sequence", "seed")
    assert wrong(found) == {"sequence", "seed"}
    greedy, sampled = found["sequence"][:5], found["sequence"][5:]
    assert {result.outcome for result in greedy} == {"OK"}
    assert {result.outcome for result in sampled} == {"BUG"}


def test_a_unit_in_the_last_place_is_no_bug() -> None:
    tied = with_ties()
    found = verified(subject(InBlocks(tied.model, next_numbers), tied.stock))
    assert not wrong(found)
    assert {"forward", "rewind", "sequence"} <= {
        check for check, seen in outcomes(found).items() if "NUMERICS" in seen
    }
    told = [d for result in found["sequence"] for d in result.differences]
    assert {d.kind for d in told} == {"tie"} and {d.size for d in told} == {0.0}
    assert 0 < max(d.ulps or 0 for d in found["rewind"][0].differences) <= 1


def test_what_raises_is_a_bug_and_ends_nothing() -> None:
    def fails(logits: mx.array) -> mx.array:
        raise ZeroDivisionError("no")

    found = verified(subject(InBlocks(hybrid().model, fails), hybrid().stock), "forward", "seed")
    assert wrong(found) == {"forward", "seed"}
    assert "ZeroDivisionError: no" in found["seed"][0].differences[0].line()


def test_each_difference_counts_and_not_only_the_first() -> None:
    model = InBlocks(hybrid().model, second_best)
    verifying = subject(model, hybrid().stock, tokens=8)
    plain = verifying.reference(Sampling())
    strategy = Fixed(drafters(model)[0].make(), 3)
    compared, found = compare_decoding(verifying, plain, strategy, "so")
    # With one token left nothing is drafted, and a single row is right.
    assert compared == 8
    assert [d.position for d in found] == [len(plain.prompt) + n for n in range(7)]
    assert {d.kind for d in found} == {"bug"}
    longer = subject(model, hybrid().stock, tokens=MAX_DIFFERENCES + 9)
    assert (
        len(compare_decoding(longer, longer.reference(Sampling()), strategy, "so")[1])
        == MAX_DIFFERENCES
    )


def test_a_text_goes_on_over_ids_that_end_it() -> None:
    plain = subject(hybrid().model).reference(Sampling())
    model = Around(hybrid().model, eos=plain.ids[2:4])
    assert len(list(Decoder(model, Fixed(drafters(model)[0].make(), 3)).generate(plain.prompt))) < 6
    found = verified(subject(model), "sequence", "acceptance")
    assert not wrong(found)
    assert found["sequence"][1].compared == 5 * TOKENS


@pytest.mark.parametrize(("blind", "outcome"), [(40, "NUMERICS"), (1, "BUG")])
def test_where_blocks_round_otherwise_acceptance_may_differ_by_chance(
    blind: int, outcome: str
) -> None:
    model, tokenizer = sp.load_demo("hybrid")
    assert model.head is not None
    head, right = Forgetful(model.head, lambda n: n % blind == 0), verify.head_drafter()
    drafter = verify.Drafter("mtp", sp.MTPChain, lambda _, text: right.offline(model, text))
    ids = tokenizer.encode(demo_prompt())
    verifying = verify.VerificationTarget(sp.adapt(model, head=head), ids, tokens=48)
    vars(verifying)["rounding"] = Rounding(noise=1e-6)
    found = verify.check_acceptance(verifying, drafter, Sampling(), depth=2)
    assert found.differences and found.outcome == outcome, found.summary()


def test_noise_is_that_of_mlx_lms_own_model() -> None:
    stock = InBlocks(hybrid().model, lambda logits: logits + 0.01)
    noisy = subject(hybrid().model, stock)
    assert noisy.rounding.noise == pytest.approx(0.01, rel=1e-3)
    assert subject(hybrid().model).rounding.noise == 0


@pytest.mark.parametrize(
    ("value", "dtype", "unit"),
    [
        (1.0, mx.float32, 2**-23),
        (-17.0, mx.float32, 2**-19),
        (31.9, mx.bfloat16, 0.125),
        (0.75, mx.float16, 2**-11),
    ],
)
def test_a_unit_in_the_last_place(value: float, dtype: mx.Dtype, unit: float) -> None:
    assert ulp(value, dtype) == unit
    number = mx.array([value], dtype=dtype)
    above = (number.view(mx.uint32 if number.itemsize == 4 else mx.uint16) + 1).view(dtype)
    assert abs((above - number).astype(mx.float32).item()) == unit


def test_kinds_of_differences() -> None:
    exact, noisy = Rounding(), Rounding(noise=0.3)
    assert [exact.kind(size, 0.125) for size in (0, 0.125, 0.25, 0.26)] == [
        "tie",
        "numerics",
        "numerics",
        "bug",
    ]
    assert [noisy.kind(size, 0.125) for size in (0.6, 0.7, math.nan)] == ["numerics", "bug", "bug"]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_how_much_better_one_token_scored(temperature: float) -> None:
    logits = mx.array([[1.0, 4.0, 3.5, -50.0]])
    sampling = Sampling(temperature=temperature, seed=1)
    one = reference_token(logits, sampling, 9)
    other = reference_token(logits + mx.array([[0.0, -0.25, 0.25, 0.0]]), sampling, 9)
    assert one.token == other.token == 1
    sizes = [at.difference(9, 2, Rounding(), "so").size for at in (one, other)]
    assert sizes[0] - sizes[1] == pytest.approx(0.5, abs=1e-5)
    assert (sizes[0] == 0.5) == (temperature == 0)
