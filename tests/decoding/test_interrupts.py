"""Ctrl-C at any line: the caches are the caller's again, and hold the text that was seen."""

from __future__ import annotations

import random
from functools import cache
from typing import Final, Literal

import attrs
import pytest

from speculate import Decoder, DraftModel, Fixed, MTPChain, Off, SpeculateError, Token
from speculate.errors import RewindError
from speculate.protocols import Proposer
from speculate.testing import ScheduledStrategy
from tests.support import reference
from tests.support.interrupts import Interrupter
from tests.support.mtp_heads import with_knowing_head
from tests.support.recording import Broken, GuidedModel, Ticker, WatchedProposer

Drafter = Literal["script", "draft", "head", "propose", "settle"]

COUNT: Final = 7
SETTLED_AFTER: Final = 3
DEPTHS: Final = (3, 0, 0, 2)
WRONG: Final = frozenset({8, 10})


@attrs.frozen
class Case:
    """A model, and who drafts for it.

    Attributes:
        name: Of `kit`; or "quantised", for rows that are quantised within the text.
        drafter: A script, a model or a head; or the call in which a script fails by itself, so
            that an interrupt comes while that is handled.
    """

    name: str
    drafter: Drafter = "script"

    @property
    def model(self) -> str:
        return "wide_heads" if self.name == "quantised" else self.name

    def caches(self) -> list[object]:
        return reference.stock_caches(self.model)

    def decoder(self, ticker: Ticker) -> Decoder:
        """Drafts are wrong at the first, the second, ... in turn."""
        model = reference.get(self.model).model
        text = [*reference.PROMPT, *reference.truth(self.model, reference.PROMPT, COUNT)]
        proposer: Proposer
        if self.drafter == "draft":
            proposer = DraftModel(GuidedModel(model, text, WRONG))
        elif self.drafter == "head":
            model = with_knowing_head(self.model, text, WRONG)[0].model
            proposer = MTPChain()
        else:
            proposer = reference.scripted(
                self.model, reference.PROMPT, COUNT, reference.always("each")
            )
        if self.drafter in {"propose", "settle"}:
            ticker.place, ticker.at = self.drafter, 1
        watched = WatchedProposer(proposer, ticker)
        return Decoder(
            model,
            ScheduledStrategy([(watched, depth) for depth in DEPTHS]),
            kv_bits=8 if self.name == "quantised" else None,
            kv_group_size=32,
            quantized_kv_start=8,
            prefill_step_size=3,
        )


CASES: Final = (
    *map(Case, ("dense", "gpt_oss", "qwen3_5", "qwen3_5_folded", "lfm2", "quantised")),
    Case("dense", "draft"),
    Case("gpt_oss", "head"),
    Case("qwen3_5", "propose"),
    Case("gpt_oss", "settle"),
)
SAMPLED: Final = 7


def run(decoder: Decoder, caches: list[object], tokens: list[Token]) -> None:
    """A text that is settled in the middle."""
    running = decoder.generate(reference.PROMPT, COUNT, caches)
    try:
        for token in running:
            tokens.append(token)
            if len(tokens) == SETTLED_AFTER:
                decoder.settle()
    finally:
        running.close()


def interrupted(
    case: Case, at: int, caches: list[object], tokens: list[Token]
) -> tuple[Decoder, Interrupter]:
    """A run in which a line is not executed. What fails by itself fails once."""
    ticker, interrupter = Ticker(), Interrupter(at)
    decoder = case.decoder(ticker)
    try:
        with interrupter:
            run(decoder, caches, tokens)
    except (KeyboardInterrupt, Broken):
        pass
    ticker.place = ""
    return decoder, interrupter


@cache
def lines(case: Case) -> int:
    """How many lines of the package a run executes, once everything is made that is made once."""
    return max(interrupted(case, 0, case.caches(), [])[1].lines for _ in range(2))


@cache
def left_over(case: Case, emitted: int) -> list[object]:
    """What plain decoding leaves after so many tokens."""
    caches = case.caches()
    model, bits = reference.get(case.model).model, 8 if case.name == "quantised" else None
    plain = Decoder(
        model,
        Off(),
        kv_bits=bits,
        kv_group_size=32,
        quantized_kv_start=8,
        prefill_step_size=3,
    )
    list(plain.generate(reference.PROMPT, emitted, caches))
    return caches


def check(case: Case, at: int) -> None:
    caches = case.caches()
    objects, tokens = list(caches), list[Token]()
    decoder, interrupter = interrupted(case, at, caches, tokens)
    try:
        check_text(case, caches, reference.ids_of(tokens))
        if case.name != "quantised":
            assert all(a is b for a, b in zip(caches, objects, strict=True)), "other objects"
        assert decoder.pending is None
        check_stats(decoder, tokens)
        check_goes_on(case, decoder, caches, reference.ids_of(tokens))
    except Exception as error:
        raise AssertionError(f"{case}, line {at}, {interrupter.where}: {error}") from error


def check_text(case: Case, caches: list[object], ids: list[int]) -> None:
    assert ids == reference.truth(case.model, reference.PROMPT, len(ids))
    # Before the first token: the prompt, or what they held before.
    nothing = not ids and reference.offset(caches[-1]) == 0
    reference.same_content(caches, case.caches() if nothing else left_over(case, len(ids)))


def check_stats(decoder: Decoder, tokens: list[Token]) -> None:
    stats = decoder.stats
    assert stats.emitted_tokens == stats.round_tokens == len(tokens)
    assert stats.accepted_tokens == sum(token.from_draft for token in tokens)
    assert stats.drafts == sum(own.drafts for own in stats.by_proposer.values())


def check_goes_on(case: Case, decoder: Decoder, caches: list[object], ids: list[int]) -> None:
    """The next turn is as if nothing had happened."""
    text = [*reference.PROMPT, *ids] if reference.offset(caches[-1]) else []
    second = list(decoder.generate(reference.SECOND, 3, caches))
    if case.name != "quantised":
        reference.check_tokens(case.model, [*text, *reference.SECOND], second)
        reference.check_holds(
            case.model, caches, [*text, *reference.SECOND, *reference.ids_of(second)]
        )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_interrupt_at_some_lines(case: Case) -> None:
    for at in random.Random(str(case)).sample(range(1, lines(case) + 1), SAMPLED):
        check(case, at)


@pytest.mark.soak
@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_interrupt_at_every_line(case: Case) -> None:
    failures = []
    for at in range(1, lines(case) + 1):
        try:
            check(case, at)
        except AssertionError as error:
            failures.append(str(error).splitlines()[0])
    assert not failures, "\n".join(failures)


def test_a_settle_that_is_broken_off_returns_the_list_and_ends_the_text() -> None:
    decoder = Case("qwen3_5").decoder(Ticker())
    caches = reference.stock_caches("qwen3_5")
    running = decoder.generate(reference.PROMPT, COUNT, caches)
    ids = [next(running).id for _ in range(2)]
    with Interrupter(40), pytest.raises(KeyboardInterrupt):
        decoder.settle()
    reference.check_holds("qwen3_5", caches, [*reference.PROMPT, *ids])
    said = r"settle\(\) failed or was interrupted, which ended this generation"
    with pytest.raises(SpeculateError, match=said):
        next(running)
    second = list(decoder.generate(reference.SECOND, 3, caches))
    reference.check_tokens("qwen3_5", [*reference.PROMPT, *ids, *reference.SECOND], second)


def test_a_cache_that_cannot_be_returned_is_put_into_the_list_as_it_is() -> None:
    model = reference.get("dense").model
    caches: list[object] = [*model.make_cache(position=5)]
    objects = list(caches)
    proposer = reference.scripted("dense", reference.PROMPT, COUNT, reference.always(None))
    running = Decoder(model, Fixed(proposer, 2)).generate(reference.PROMPT, COUNT, caches)
    next(running)
    with pytest.raises(RewindError, match="started late"):
        running.close()
    assert all(a is b for a, b in zip(caches, objects, strict=True))
