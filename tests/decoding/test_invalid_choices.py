"""A sampler, a strategy or a proposer that goes wrong: a clear error, and never a crash."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Collection, Sequence
from typing import Any, cast

import mlx.core as mx
import pytest

import speculate as sp
from speculate.errors import SpeculateError
from speculate.protocols import Draft, DraftToken, Plan, Verification
from speculate.testing import ToyModel
from tests.support import reference


class Chooser:
    """A sampler that picks the most likely token; `wrong` replaces it after the first round."""

    supports_lookahead = True

    def __init__(self, wrong: int | None = None, choice: int | None = None, rows: bool = True):
        self.wrong, self.choice, self.rows = wrong, choice, rows
        self.verified = 0

    def begin(self, history: Sequence[int], position: int, stop: Collection[int], /) -> None:
        self.verified = 0

    def choose(self, logits: mx.array, index: int, /) -> DraftToken:
        if self.choice is None:
            return DraftToken(mx.argmax(logits, axis=-1))
        return DraftToken(mx.array([self.choice], dtype=mx.int64))

    def verify(self, last_token: mx.array, draft: Draft, logits: mx.array, /) -> Verification:
        self.verified += 1
        tokens = mx.argmax(logits, axis=-1).astype(mx.int64)
        if self.wrong is not None and self.verified > 1:
            tokens = mx.full(tokens.shape, self.wrong, dtype=mx.int64)
        k = draft.tokens.shape[0]
        right = mx.cumprod((tokens[:k] == draft.tokens).astype(mx.int32))
        return Verification(
            right.sum().astype(mx.int32), tokens, logits if self.rows else logits[:1]
        )

    def commit(self, tokens: mx.array, /) -> None:
        """Nothing depends on it."""


@pytest.mark.parametrize("token", [-1, 4_000_000_000])
@pytest.mark.parametrize("kind", ["sampler", "callable", "draft"])
def test_a_token_outside_the_vocabulary_is_an_error_and_no_crash(kind: str, token: int) -> None:
    script = f"""
import mlx.core as mx, speculate as sp
from tests.decoding.test_invalid_choices import Chooser
from tests.support import reference
model = reference.get("dense").model
if "{kind}" == "sampler":
    decoder = sp.Decoder(model, sp.Off(), Chooser(wrong={token}))
elif "{kind}" == "callable":
    decoder = sp.Decoder(model, sp.Off(), lambda row: mx.array([{token}], dtype=mx.int64))
else:
    decoder = sp.Decoder(model, sp.Fixed(sp.DraftModel(model), 3), Chooser(choice={token}))
try:
    print(len(list(decoder.generate(reference.PROMPT, 8))))
except sp.SpeculateError as error:
    print(error)
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    wanted = "8" if kind == "draft" else f"chose token {token}"
    assert wanted in ran.stdout


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (3, "returned int"),
        (None, "NoneType"),
        (mx.array([1.0]), "float32"),
        (mx.array([1, 2]), r"\(2,\)"),
    ],
    ids=["int", "None", "float", "two"],
)
def test_a_callable_that_returns_no_id_is_named(answer: object, said: str) -> None:
    decoder = sp.Decoder(ToyModel(), sp.Off(), cast(Any, lambda _: answer))
    with pytest.raises(SpeculateError, match=said):
        list(decoder.generate([1, 2, 3], 4))


def test_too_few_rows_of_logits_are_refused_in_their_round() -> None:
    model = reference.get("dense").model
    drafts = reference.scripted("dense", reference.PROMPT, 20, reference.always(None))
    decoder = sp.Decoder(model, sp.Fixed(drafts, 3), Chooser(rows=False))
    with pytest.raises(SpeculateError, match="rows of logits"):
        list(decoder.generate(reference.PROMPT, 8))


class Planned:
    """A strategy with one plan."""

    def __init__(self, plan: Plan, *proposers: Any) -> None:
        self._plan, self.proposers = plan, proposers

    def begin(self) -> None:
        """Nothing to reset."""

    def plan(self, remaining: int | None, /) -> Plan:
        return self._plan

    def observe(self, round: sp.Stats, /) -> None:
        """Nothing to learn."""


@pytest.mark.parametrize("depth", [None, "2", 2.0])
def test_a_depth_that_is_no_number_of_tokens_is_named(depth: object) -> None:
    lookup = sp.PromptLookup()
    decoder = sp.Decoder(ToyModel(), cast(Any, Planned(Plan(lookup, cast(int, depth)), lookup)))
    with pytest.raises(SpeculateError, match=f"planned {depth!r} drafts"):
        list(decoder.generate([1, 2, 3], 4))


def test_a_proposer_that_is_not_the_strategys_own_is_refused() -> None:
    decoder = sp.Decoder(ToyModel(), cast(Any, Planned(Plan(sp.PromptLookup(), 2))))
    with pytest.raises(SpeculateError, match="which is not one of its own"):
        list(decoder.generate([1, 2, 3], 4))


class Writes(sp.PromptLookup):  # type: ignore[misc]  # final
    """Writes into the array that it is given."""

    def propose(self, last_token: mx.array, limit: int, choose: Any, /) -> Draft:
        last_token += 1
        return Draft(mx.array([5] * limit, dtype=mx.uint32))


def test_a_proposer_that_writes_into_its_argument_does_not_change_the_text() -> None:
    model = reference.get("dense").model
    tokens = list(sp.Decoder(model, sp.Fixed(Writes(), 2)).generate(reference.PROMPT, 12))
    assert reference.ids_of(tokens) == reference.truth("dense", reference.PROMPT, 12)


@pytest.mark.parametrize("depth", [0, 3])
def test_settle_after_the_last_token_asks_for_nothing_more(depth: int) -> None:
    sampler = Chooser()
    lookup = sp.PromptLookup(min_ngram=1)
    strategy = sp.Fixed(lookup, depth) if depth else sp.Off()
    decoder = sp.Decoder(reference.get("dense").model, strategy, sampler)
    caches = reference.stock_caches("dense")
    tokens = []
    for token in decoder.generate(reference.PROMPT, 6, caches):
        tokens.append(token)
        before = sampler.verified
        decoder.settle()
        if token.finish_reason is not None:
            assert sampler.verified == before
    reference.check_holds("dense", caches, [*reference.PROMPT, *reference.ids_of(tokens)])


@pytest.mark.parametrize("make", [sp.MTPChain, "draft"], ids=["head", "draft"])
def test_caches_of_a_finished_sequence_are_freed_without_the_garbage_collector(make: Any) -> None:
    model, _ = sp.load_demo("hybrid")
    proposer = sp.DraftModel(sp.load_demo("draft")[0]) if make == "draft" else make()
    decoder = sp.Decoder(model, sp.Fixed(proposer, 2))
    for _ in range(2):
        list(decoder.generate([1, 2, 3, 4], 6))
    gc.collect()
    gc.disable()
    try:
        used = mx.get_active_memory()
        for _ in range(3):
            list(decoder.generate([1, 2, 3, 4], 6))
        assert mx.get_active_memory() - used < 200_000
    finally:
        gc.enable()
