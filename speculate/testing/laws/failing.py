"""What a model must do when a forward fails half way: nothing has happened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, final

import mlx.core as mx

from speculate.decoding.window import speculation
from speculate.protocols import Rollbackable
from speculate.testing.broken import at, law, require
from speculate.testing.driving import Driven, Fed
from speculate.testing.kinds import PartFailedError


@law
def a_forward_that_fails_consumes_nothing(driven: Driven) -> None:
    """Every layer is as before, in whichever layer it failed."""
    layers = len(driven.model.make_cache())
    for failing in {0, 1, layers // 2, layers - 1} & set(range(layers)):
        fed = Fed(driven, 12)
        for width in (1, 5):
            _fail(fed, failing, width)
        fed.feed(1)
        with speculation(fed.caches) as window:
            fed.feed(0, 3)
            for width in (1, 5):
                _fail(fed, failing, width)
            window.keep(0)
            fed.feed(2)
            window.keep(2)
        fed.feed(1)


def _fail(fed: Fed, layer: int, width: int) -> None:
    """A forward whose layer fails as soon as it reaches for its cache."""
    caches: list[object] = [*fed.caches]
    caches[layer] = OutOfReach(fed.caches[layer])
    tokens = mx.array([fed.driven.wrong(fed.length, width)], dtype=mx.uint32)
    with at(fed.rounds, fed.length):
        try:
            mx.eval(fed.driven.model.forward(tokens, caches).logits)
        except PartFailedError:
            return
        require(False, f"layer {layer} did not use the cache that it was given")


@final
class OutOfReach:
    """Stands for a cache, and fails when a layer writes to it."""

    def __init__(self, cache: Rollbackable) -> None:
        self._cache = cache

    def __getattr__(self, name: str) -> object:
        if name in ("update_and_fetch", "advance"):
            raise PartFailedError
        return cast(object, getattr(self._cache, name))

    def __getitem__(self, index: int) -> object:
        entry = cast(Sequence[object], self._cache)[index]
        # A cache that holds several gives one of them.
        return OutOfReach(entry) if isinstance(entry, Rollbackable) else entry

    def __setitem__(self, index: int, value: object) -> None:
        raise PartFailedError
