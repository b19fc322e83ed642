"""Mistakes that users make: each is answered with what is wrong and what to write instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import mlx.core as mx
import pytest

import speculate as sp
from speculate.errors import OptionError, RewindError
from speculate.protocols import Plan, Round
from tests.support import reference
from tests.support.recording import WatchedProposer

MODEL = reference.get("qwen3_5").model


class Planless:
    """A strategy whose `plan` forgot to return."""

    @property
    def proposers(self) -> Sequence[sp.MTPChain]:
        return ()

    def begin(self) -> None:
        """Start a sequence: nothing to reset."""

    def plan(self, remaining: int | None, /) -> Plan:
        return cast(Plan, None)

    def observe(self, round: Round, /) -> None: ...


class Beginless:
    """A strategy of an earlier version, when strategies were not told of a new sequence."""

    @property
    def proposers(self) -> Sequence[sp.MTPChain]:
        return ()

    def plan(self, remaining: int | None, /) -> Plan:
        return Plan()

    def observe(self, round: Round, /) -> None: ...


class Tapping(WatchedProposer):
    """A proposer that reads outputs of layers."""

    def __init__(self, *taps: int) -> None:
        super().__init__(sp.PromptLookup())
        self.taps = taps


class Lists:
    """A proposer that drafts a list. Stands for another, as wrappers do."""

    def __init__(self) -> None:
        self._lookup = sp.PromptLookup()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lookup, name)

    def propose(self, *_: object) -> list[int]:
        return [1]


def decode(strategy: Any) -> object:
    return list(sp.Decoder(MODEL, strategy).generate(reference.PROMPT, 4))


def keep_what_was_not_fed() -> None:
    with sp.speculation(MODEL.make_cache()) as window:
        window.keep(3)


def enter(caches: Any) -> None:
    with sp.speculation(caches):
        pass


def enter_none() -> None:
    with sp.speculation():
        pass


STOCK: Any = reference.get("qwen3_5").stock
CHAIN: Any = sp.MTPChain
MISTAKES: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "a stock model": (lambda: sp.Decoder(STOCK), OptionError, r"speculate\.adapt\(model\)"),
    "a stock draft": (lambda: sp.DraftModel(STOCK), OptionError, r"speculate\.adapt\(model\)"),
    "a model drafts": (lambda: sp.Fixed(cast(Any, MODEL), 3), OptionError, "is not a proposer"),
    "a class": (lambda: sp.Fixed(CHAIN, 3), OptionError, "MTPChain is a class"),
    "a list": (lambda: sp.Adaptive(cast(Any, [sp.MTPChain()])), OptionError, "separate arguments"),
    "no plan": (lambda: decode(Planless()), sp.SpeculateError, "a NoneType, not a Plan"),
    "no begin": (lambda: decode(Beginless()), OptionError, "Beginless .*it lacks begin$"),
    "taps": (
        lambda: sp.Decoder(MODEL, sp.Fixed(Tapping(1, 3), 2)),
        OptionError,
        r"'lookup' reads .*layers \[1, 3\], which no model returns yet",
    ),
    "a forward with taps": (
        lambda: MODEL.forward(mx.array([[1]]), MODEL.make_cache(), taps=[1]),
        OptionError,
        r"Qwen35Adapter cannot return .*\(taps\)",
    ),
    "a batch": (
        lambda: MODEL.forward(mx.array([[1, 2], [3, 4]]), MODEL.make_cache()),
        OptionError,
        r"shape \(1, T\), T >= 1, got \(2, 2\)",
    ),
    "a list of drafts": (
        lambda: decode(sp.Fixed(cast(Any, Lists()), 2)),
        sp.SpeculateError,
        "'lookup' returned a list, not a Draft",
    ),
    "a seed": (lambda: sp.Sampling(seed=cast(Any, 1.5)), OptionError, "an integer"),
    "a list of tokens": (
        lambda: MODEL.forward(cast(Any, [[1]]), MODEL.make_cache()),
        OptionError,
        r"mx\.array \(1, T\)",
    ),
    "another model's caches": (
        lambda: MODEL.forward(mx.array([[1]]), reference.get("small_dense").model.make_cache()[:1]),
        OptionError,
        "got 1 caches, and this model has 4",
    ),
    "no caches": (enter_none, OptionError, "at least one model's list"),
    "a model for caches": (lambda: enter(MODEL), OptionError, "make_cache"),
    "nothing fed": (keep_what_was_not_fed, RewindError, "0 were fed .*model.forward"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_with_its_remedy(name: str) -> None:
    act, error, message = MISTAKES[name]
    with pytest.raises(error, match=message):
        act()


def test_what_is_refused_is_fed_to_no_layer() -> None:
    cache = MODEL.make_cache()
    for tokens, taps in ((mx.array([[1, 2], [3, 4]]), ()), (mx.array([[1]]), (0,))):
        with pytest.raises(OptionError):
            MODEL.forward(tokens, cache, taps=taps)
    assert {layer.length() for layer in cache} == {0}


def test_a_proposer_that_could_read_layers_and_reads_none_drafts() -> None:
    decoder = sp.Decoder(MODEL, sp.Fixed(Tapping(), 2))
    tokens = [token.id for token in decoder.generate(reference.PROMPT, 4)]
    assert tokens == reference.truth("qwen3_5", reference.PROMPT, 4)


def test_options_of_other_libraries_are_named() -> None:
    model, tokenizer = sp.load_demo()
    for name, remedy in {
        "temp": r"sampling=Sampling\(temperature=",
        "top_p": r"sampling=Sampling\(top_p=",
        "sampler": "sampling=sampler",
        "input_embeddings": "not supported",
        "lookahead": "strategy=.*sampling=.*Decoder",
    }.items():
        wrong: Any = {name: 1}
        with pytest.raises(OptionError, match=rf"{name}.*{remedy}"):
            sp.generate(model, tokenizer, "a", **wrong)


def test_arrays_of_the_wrong_shape_are_refused() -> None:
    with pytest.raises(OptionError, match=r"\(1, T\)"):
        MODEL.forward(mx.array([1]), MODEL.make_cache())
