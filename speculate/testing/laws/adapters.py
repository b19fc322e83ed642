"""What an adapter must do beside its forward: mlx-lm's caches, late starts, and bad input."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Final, cast

import mlx.core as mx
from typing_extensions import Protocol

from speculate.decoding.window import speculation
from speculate.errors import CannotRewindError, SpeculateError
from speculate.protocols import Rollbackable, StockModel
from speculate.testing.broken import law, require
from speculate.testing.driving import Driven, Fed, compare, feed
from speculate.testing.laws.lending import StockCache
from speculate.testing.laws.models import ROTATED

LATE: Final = 40


class Module(Protocol):
    """A module of mlx, as far as this needs to know it."""

    def named_modules(self) -> list[tuple[str, object]]:
        """Itself and all modules in it."""


@law
def mlx_lms_caches_are_adopted_and_given_back(driven: Driven) -> None:
    """The same objects, and each time the text goes on where it was."""
    caches = driven.stock_caches()
    start = 0
    for width in (5, 1, 7, 9, 4):
        feed(driven.model, driven.text[start : start + width], caches)
        start += width
        adopted = driven.model.adopt(caches)
        emptied = all(cast(StockCache, cache).empty() for cache in caches)
        require(emptied, "what was adopted still holds the rows, too")
        with speculation(adopted) as window:
            feed(driven.model, driven.wrong(start, 3), adopted)
            window.keep(0)
            found = feed(driven.model, driven.text[start : start + 2], adopted)
            driven.compare(found, start, max(driven.tolerance, ROTATED))
            window.keep(2)
        start += 2
        back = [cache.hand_back() for cache in adopted]
        same = all(one is other for one, other in zip(back, caches, strict=True))
        require(same, "hand_back gives another object than the one that was adopted")


@law
def mlx_lm_goes_on_where_a_model_stopped(driven: Driven) -> None:
    """The stock model over what is handed back: the logits of the text."""
    if driven.stock is None:
        return
    for prompt in (3, 12, 30):
        fed = Fed(driven, prompt)
        with speculation(fed.caches) as window:
            fed.feed(0, 4)
            window.keep(0)
            fed.feed(2, 3)
            window.keep(2)
            if any(cache.length() < fed.length for cache in fed.caches):
                # A whole block pays what is owed.
                fed.feed(1)
                window.keep(1)
        stock = [cache.hand_back() for cache in fed.caches]
        for position in range(fed.length, fed.length + 3):
            tokens = mx.array([[driven.text[position]]])
            found = driven.stock(tokens, cache=stock)[0]
            driven.compare(found, position, max(driven.tolerance, ROTATED))


@law
def what_cannot_go_back_is_refused_and_nothing_moves(driven: Driven) -> None:
    """One layer's cache is of a kind that nothing can rewind."""
    caches: list[object] = driven.stock_caches()
    feed(driven.model, driven.text[:5], caches)
    whole, caches[-1] = caches[-1], object()
    try:
        driven.model.adopt(caches)
    except CannotRewindError:
        caches[-1] = whole
    else:
        require(False, "an object that is no cache was adopted")
    driven.compare(feed(driven.model, driven.text[5:7], caches), 5)


@law
def a_cache_of_two_layers_is_refused_and_nothing_moves(driven: Driven) -> None:
    """Rows of one layer would replace the other's: of mlx-lm's caches and of rewindable ones."""
    made: tuple[list[object], ...] = (driven.stock_caches(), [*driven.model.make_cache()])
    for caches in made:
        feed(driven.model, driven.text[:5], caches)
        for twice in ([*caches[:-1], caches[0]], [caches[0]] * len(caches)):
            if len(caches) > 1:
                try:
                    driven.model.adopt(twice)
                except SpeculateError:
                    continue
                require(False, "one cache was adopted for two layers")
        driven.compare(feed(driven.model, driven.text[5:7], caches), 5)


@law
def caches_of_a_model_are_one_group(driven: Driven) -> None:
    """Fresh ones each time, one a layer, each as long as what was fed."""
    model = driven.model
    one, other = model.make_cache(), model.make_cache()
    require(len(one) == len(other) > 0, f"{len(one)} caches, then {len(other)}")
    require(not any(a is b for a in one for b in other), "two lists share a cache")
    require([c.length() for c in one] == [0] * len(one), "a fresh cache is not empty")
    require(all(isinstance(c, Rollbackable) for c in one), "a cache is not Rollbackable")
    feed(model, driven.text[:5], one)
    require([c.length() for c in one] == [5] * len(one), "a layer's length is not 5 after 5")
    require([c.length() for c in other] == [0] * len(one), "two lists share a state")
    again = model.adopt(one)
    same = all(a is b for a, b in zip(again, one, strict=True))
    require(same, "adopting rewindable caches gives other ones")


@law
def a_late_cache_counts_from_its_position(driven: Driven) -> None:
    """Its first token stands at the given position, and nothing before can be taken back."""
    caches = driven.model.make_cache(position=LATE)
    lengths = [cache.length() for cache in caches]
    require(lengths == [LATE] * len(caches), f"lengths are {lengths}, and nothing was fed")
    whole = feed(driven.model, driven.text[:6], caches)
    lengths = [cache.length() for cache in caches]
    require(lengths == [LATE + 6] * len(caches), f"lengths are {lengths} after 6 tokens")
    again = driven.model.make_cache(position=LATE)
    with speculation(again) as window:
        feed(driven.model, [*driven.text[:2], *driven.wrong(2, 4)], again)
        window.keep(2)
        rest = feed(driven.model, driven.text[2:6], again)
        compare(rest, whole[2:], driven.tolerance, LATE + 2, "one block from there on")
        window.keep(4)


@law
def bad_input_is_refused_and_changes_nothing(driven: Driven) -> None:
    """A forward takes one sequence of at least one token."""
    fed = Fed(driven, 5)
    for shape in ((3,), (1, 0), (2, 3), (1, 3, 1)):
        try:
            driven.model.forward(mx.zeros(shape, dtype=mx.uint32), fed.caches)
        except SpeculateError:
            continue
        require(False, f"tokens of shape {shape} were accepted")
    fed.feed(2)


@law
def the_stock_model_stays_as_it_is(driven: Driven) -> None:
    """Neither a class nor a module of it changes, and what it says does not either."""
    if driven.stock is None:
        return
    foreign = [f"{kind.__qualname__}.{name}" for kind, name in _foreign(driven.stock)]
    require(not foreign, f"these are not mlx-lm's any more: {', '.join(foreign)}")
    before, said = _parts(driven.stock), _said(driven, driven.stock)
    fed = Fed(driven, 5)
    with speculation(fed.caches) as window:
        fed.feed(1, 3)
        window.keep(1)
        require(bool(mx.array_equal(_said(driven, driven.stock), said)), "it says another thing")
    changed = [name for name, part in _parts(driven.stock).items() if before.get(name) is not part]
    require(not changed, f"these are others than before: {', '.join(changed)}")
    require(bool(mx.array_equal(_said(driven, driven.stock), said)), "it says another thing later")


def _said(driven: Driven, stock: StockModel) -> mx.array:
    tokens = mx.array([driven.text[:20]], dtype=mx.uint32)
    logits = stock(tokens, cache=driven.stock_caches())
    mx.eval(logits)
    return logits


def _parts(stock: StockModel) -> dict[str, object]:
    """What a model, its layers and their classes are made of."""
    found: dict[str, object] = {}
    for name, module in cast(Module, stock).named_modules():
        kind = type(module)
        found[f"class of {name or 'the model'}"] = kind
        found |= {f"{name}.{key}": value for key, value in vars(module).items()}
        found |= {f"{name}[{key}]": value for key, value in _entries(module)}
        found |= {f"{kind.__qualname__}.{key}": value for key, value in vars(kind).items()}
    return {name: value for name, value in found.items() if "__annot" not in name}


def _foreign(stock: StockModel) -> Iterator[tuple[type, str]]:
    """Methods of a model's classes whose code is not in the package of the class."""
    for kind in {type(module) for _, module in cast(Module, stock).named_modules()}:
        home: Sequence[str] = vars(sys.modules[kind.__module__.partition(".")[0]]).get(
            "__path__", [""]
        )
        for name, method in vars(kind).items():
            if isinstance(method, FunctionType):
                file = method.__code__.co_filename
                # What dataclasses make up is in no file.
                if not file.startswith(("<", *home)):
                    yield kind, name


def _entries(module: object) -> Sequence[tuple[str, object]]:
    """The parameters and submodules of a module: it is a dict of them."""
    return list(cast("dict[str, object]", module).items())
