"""Contracts of a model besides its forward: mlx-lm's caches, start positions, malformed input."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Final, cast

import mlx.core as mx
from typing_extensions import Protocol

from speculate.decoding.window import speculation
from speculate.errors import CannotRewindError, SpeculateError
from speculate.protocols import Rollbackable, StockModel
from speculate.testing._cache_transfer import all_empty
from speculate.testing._model_harness import ModelHarness, ModelRun, compare, feed
from speculate.testing.contract import contract, require

START: Final = 40
"""Position at which caches start that do not start at 0."""

ROTATED_TOLERANCE: Final = 1e-4
"""Error of mlx-lm's own single steps once a window has wrapped and its rows are rotated."""


class HasModules(Protocol):
    """The part of a module of mlx that is used here."""

    def named_modules(self) -> list[tuple[str, object]]:
        """List the module and all modules in it."""


class AdapterContracts(ABC):
    """The part of `ModelTests` on caches, start positions, malformed input and the stock model."""

    @abstractmethod
    def harness(self) -> ModelHarness:
        """What the contracts drive."""

    @contract
    def test_mlx_lms_caches_are_adopted_and_handed_back(self) -> None:
        """The same objects are returned, and the sequence continues every time."""
        harness = self.harness()
        caches = harness.stock_caches()
        start = 0
        for width in (5, 1, 7, 9, 4):
            feed(harness.model, harness.sequence[start : start + width], caches)
            start += width
            adopted = harness.model.adopt(caches)
            require(all_empty(caches), "an adopted cache still holds the rows, too")
            with speculation(adopted) as window:
                feed(harness.model, harness.wrong(start, 3), adopted)
                window.keep(0)
                found = feed(harness.model, harness.sequence[start : start + 2], adopted)
                harness.compare(found, start, max(harness.tolerance, ROTATED_TOLERANCE))
                window.keep(2)
            start += 2
            back = [cache.hand_back() for cache in adopted]
            same = all(one is other for one, other in zip(back, caches, strict=True))
            require(same, "hand_back returns another object than the one that was adopted")

    @contract
    def test_mlx_lm_continues_from_a_models_caches(self) -> None:
        """The stock model over released caches returns the logits of the sequence."""
        harness = self.harness()
        if harness.stock is None:
            return
        for prompt in (3, 12, 30):
            run = ModelRun(harness, prompt)
            with speculation(run.caches) as window:
                run.feed(0, 4)
                window.keep(0)
                run.feed(2, 3)
                window.keep(2)
                if any(cache.length() < run.length for cache in run.caches):
                    # A whole block replays what is missing.
                    run.feed(1)
                    window.keep(1)
            stock = [cache.hand_back() for cache in run.caches]
            for position in range(run.length, run.length + 3):
                tokens = mx.array([[harness.sequence[position]]])
                found = harness.stock(tokens, cache=stock)[0]
                harness.compare(found, position, max(harness.tolerance, ROTATED_TOLERANCE))

    @contract
    def test_an_unsupported_cache_is_refused_and_nothing_moves(self) -> None:
        """A list with a cache of a kind that cannot be rewound is refused as a whole."""
        harness = self.harness()
        caches: list[object] = harness.stock_caches()
        feed(harness.model, harness.sequence[:5], caches)
        whole, caches[-1] = caches[-1], object()
        try:
            harness.model.adopt(caches)
        except CannotRewindError:
            caches[-1] = whole
        else:
            require(False, "an object that is no cache was adopted")
        harness.compare(feed(harness.model, harness.sequence[5:7], caches), 5)

    @contract
    def test_a_cache_shared_by_layers_is_refused_and_nothing_moves(self) -> None:
        """One cache for two layers is refused: one layer's rows would replace the other's."""
        harness = self.harness()
        made: tuple[list[object], ...] = (harness.stock_caches(), [*harness.model.make_cache()])
        for caches in made:
            feed(harness.model, harness.sequence[:5], caches)
            for shared in ([*caches[:-1], caches[0]], [caches[0]] * len(caches)):
                if len(caches) > 1:
                    try:
                        harness.model.adopt(shared)
                    except SpeculateError:
                        continue
                    require(False, "one cache was adopted for two layers")
            harness.compare(feed(harness.model, harness.sequence[5:7], caches), 5)

    @contract
    def test_caches_of_a_model_form_one_group(self) -> None:
        """`make_cache` returns fresh caches, one per layer, each as long as what was fed."""
        harness = self.harness()
        model, sequence = harness.model, harness.sequence
        one, other = model.make_cache(), model.make_cache()
        require(len(one) == len(other) > 0, f"{len(one)} caches, then {len(other)}")
        require(not any(a is b for a in one for b in other), "two lists share a cache")
        require([c.length() for c in one] == [0] * len(one), "a fresh cache is not empty")
        require(all(isinstance(c, Rollbackable) for c in one), "a cache is not Rollbackable")
        feed(model, sequence[:5], one)
        require([c.length() for c in one] == [5] * len(one), "a layer's length is not 5 after 5")
        require([c.length() for c in other] == [0] * len(one), "two lists share a state")
        again = model.adopt(one)
        same = all(a is b for a, b in zip(again, one, strict=True))
        require(same, "adopting rewindable caches returns other ones")

    @contract
    def test_caches_can_start_at_a_later_position(self) -> None:
        """The first token has the given position, and nothing before it can be rolled back."""
        harness = self.harness()
        model, sequence = harness.model, harness.sequence
        caches = model.make_cache(position=START)
        lengths = [cache.length() for cache in caches]
        require(lengths == [START] * len(caches), f"lengths are {lengths} before anything was fed")
        whole = feed(model, sequence[:6], caches)
        lengths = [cache.length() for cache in caches]
        require(lengths == [START + 6] * len(caches), f"lengths are {lengths} after 6 tokens")
        again = model.make_cache(position=START)
        with speculation(again) as window:
            feed(model, [*sequence[:2], *harness.wrong(2, 4)], again)
            window.keep(2)
            rest = feed(model, sequence[2:6], again)
            position = START + 2
            compare(rest, whole[2:], harness.tolerance, position, "one block from that position")
            window.keep(4)

    @contract
    def test_malformed_tokens_are_refused_and_change_nothing(self) -> None:
        """A forward takes one sequence of at least one token, and refuses everything else."""
        run = ModelRun(self.harness(), 5)
        for shape in ((3,), (1, 0), (2, 3), (1, 3, 1)):
            try:
                run.harness.model.forward(mx.zeros(shape, dtype=mx.uint32), run.caches)
            except SpeculateError:
                continue
            require(False, f"tokens of shape {shape} were accepted")
        run.feed(2)

    @contract
    def test_the_stock_model_is_not_modified(self) -> None:
        """No class, module or output of the stock model changes."""
        harness = self.harness()
        stock = harness.stock
        if stock is None:
            return
        foreign = [f"{kind.__qualname__}.{name}" for kind, name in _foreign_methods(stock)]
        require(not foreign, f"not mlx-lm's own any more: {', '.join(foreign)}")
        before, logits = _parts(stock), _stock_logits(harness, stock)
        run = ModelRun(harness, 5)
        with speculation(run.caches) as window:
            run.feed(1, 3)
            window.keep(1)
            same = bool(mx.array_equal(_stock_logits(harness, stock), logits))
            require(same, "its logits change inside a window")
        changed = [name for name, part in _parts(stock).items() if before.get(name) is not part]
        require(not changed, f"changed: {', '.join(changed)}")
        same = bool(mx.array_equal(_stock_logits(harness, stock), logits))
        require(same, "its logits change after a window")


def _stock_logits(harness: ModelHarness, stock: StockModel) -> mx.array:
    tokens = mx.array([harness.sequence[:20]], dtype=mx.uint32)
    logits = stock(tokens, cache=harness.stock_caches())
    mx.eval(logits)
    return logits


def _parts(stock: StockModel) -> dict[str, object]:
    """List the attributes of a model, of its modules, and of their classes, by name."""
    found: dict[str, object] = {}
    for name, module in cast(HasModules, stock).named_modules():
        kind = type(module)
        found[f"class of {name or 'the model'}"] = kind
        found |= {f"{name}.{key}": value for key, value in vars(module).items()}
        found |= {f"{name}[{key}]": value for key, value in _entries(module)}
        found |= {f"{kind.__qualname__}.{key}": value for key, value in vars(kind).items()}
    return {name: value for name, value in found.items() if "__annot" not in name}


def _foreign_methods(stock: StockModel) -> Iterator[tuple[type, str]]:
    """Yield methods of a model's classes whose code is outside the package of the class."""
    for kind in {type(module) for _, module in cast(HasModules, stock).named_modules()}:
        home: Sequence[str] = vars(sys.modules[kind.__module__.partition(".")[0]]).get(
            "__path__", [""]
        )
        for name, method in vars(kind).items():
            if isinstance(method, FunctionType):
                file = method.__code__.co_filename
                # Methods that dataclasses generate are in no file.
                if not file.startswith(("<", *home)):
                    yield kind, name


def _entries(module: object) -> Sequence[tuple[str, object]]:
    """The parameters and submodules of a module, which is a dict of them."""
    return list(cast("dict[str, object]", module).items())
