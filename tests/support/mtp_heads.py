"""Heads: a real one with random weights, and one that knows the text."""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import cache
from typing import Final, final

import attrs
import mlx.core as mx

from speculate._mx import to_ints
from speculate.backends.group import join
from speculate.backends.kv import RewindableKVCache
from speculate.models.mtp import QwenMTPHead, TrunkBinding, _MTPModule
from speculate.protocols import Forward, Rollbackable
from speculate.sampling.acceptance import Greedy
from tests.support import tiny
from tests.support.recording import Tick, quiet, said_at
from tests.support.reference import Tiny, adapted, get

CHOOSE: Final = Greedy().choose


@final
class KnowingHead:
    """A head that knows the text, is wrong where told to, and remembers what it was fed.

    Each row of its cache is the hidden state, the token and the position it was fed with.

    Attributes:
        caches: Every cache it made, oldest first.
        starts: Positions they started at.
        widths: Rows of each step.
    """

    def __init__(self, text: Sequence[int], wrong: Container[int] = (), tick: Tick = quiet) -> None:
        self._text = list(text)
        self._wrong = wrong
        self._tick = tick
        self.caches: list[RewindableKVCache] = []
        self.starts: list[int] = []
        self.widths: list[int] = []

    def make_cache(self, position: int = 0) -> list[Rollbackable]:
        self.caches.append(RewindableKVCache(position))
        self.starts.append(position)
        layers: list[Rollbackable] = [self.caches[-1]]
        return join(layers)

    def step(self, hidden: mx.array, tokens: mx.array, cache: list[Rollbackable], /) -> Forward:
        self._tick("head")
        layer = cache[0]
        assert isinstance(layer, RewindableKVCache)
        start, count = layer.length(), tokens.shape[1]
        self.widths.append(count)
        positions = mx.arange(start, start + count).astype(mx.float32)
        parts = [hidden, tokens[..., None].astype(mx.float32), positions[None, :, None]]
        rows = mx.concatenate(parts, axis=-1)[None]
        layer.update_and_fetch(rows, rows)
        says = [said_at(self._text, start + i + 2, self._wrong) or 0 for i in range(count)]
        logits = (mx.array(says)[:, None] == mx.arange(tiny.VOCAB)).astype(mx.float32)
        self._tick("head done")
        return Forward(logits[None], hidden)

    def rows(self) -> list[Row]:
        """Every row of the latest cache."""
        layer = self.caches[-1]
        if layer.keys is None:
            return []
        stored = layer.keys[0, 0, : layer.rows()]
        tokens, positions = (to_ints(stored[:, i].astype(mx.int32)) for i in (-2, -1))
        pairs = zip(positions, tokens, stored[:, :-2], strict=True)
        return [Row(*pair) for pair in pairs]


@final
@attrs.frozen(eq=False)
class Row:
    """What a head was fed with: the hidden state of one token, and the token after it."""

    position: int
    token: int
    hidden: mx.array


def with_knowing_head(
    name: str, text: Sequence[int], wrong: Container[int] = (), tick: Tick = quiet
) -> tuple[Tiny, KnowingHead]:
    """A model of `kit` with a head that knows a text."""
    head = KnowingHead(text, wrong, tick)
    return adapted(get(name).module, head, recurrence=tiny.recurrence(name)), head


@cache
def with_head(name: str) -> Tiny:
    """A model of `kit` with a head of the real kind, whose weights are random."""
    trunk = TrunkBinding(get(name).stock)
    layer = trunk.layer(experts=name in {"qwen3_next", "qwen3_5_moe"}, intermediate=None)
    args = trunk.text.args
    module = _MTPModule(args.hidden_size, args.rms_norm_eps, [layer])
    tiny.spread(module, seed=5)
    return adapted(get(name).module, QwenMTPHead(trunk, module), recurrence=tiny.recurrence(name))
