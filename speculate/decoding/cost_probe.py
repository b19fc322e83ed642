"""What forwards and drafts cost, measured on the text at hand: rewinding makes that possible."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import mlx.core as mx

from speculate.decoding.config import Setup
from speculate.decoding.proposers import checked_draft
from speculate.decoding.target import Target
from speculate.protocols import Choice, Costs, Fingerprinted, Foresees, Proposer, UsesCosts
from speculate.version import mlx_version

ROWS: Final = (1, 2, 3, 5, 9)
"""Widths of the forwards that are timed."""

REPEATS: Final = 2
"""Timed runs of each, after one to warm up; the faster one counts."""

DRAFTS: Final = (1, 4)
"""Depths that are timed. The difference has no catching up in it."""


def measure_costs(
    setup: Setup, target: Target, text: Sequence[int], context: int, remaining: int | None
) -> None:
    """Measure for a strategy that misses it. Leaves every cache as it was.

    Args:
        setup: The decoder's parts.
        target: With the text in its caches, except the newest token.
        text: Ids that such forwards are fed, ending with the newest token.
        context: Tokens of text in front.
        remaining: Tokens to emit at most; `None` without a limit.
    """
    strategy = setup.strategy
    if not isinstance(strategy, UsesCosts):
        return
    if not strategy.missing_costs(_key(setup), context, remaining):
        return
    room = target.room()
    forward: dict[int, float] = {}
    for rows in ROWS:
        if room is None or rows <= room + 1:
            ids = (list(text) * rows)[-rows:]
            forward[rows] = _fastest(partial(target.rehearse, ids))
    if len(forward) < 2:
        return
    newest = mx.array([text[-1]], dtype=mx.uint32)
    draft: dict[str, float] = {}
    for proposer in strategy.proposers:
        if setup.drafting.takes_part(proposer) and not isinstance(proposer, Foresees):
            with setup.drafting.tolerated(proposer):
                seconds = _draft_seconds(proposer, newest)
                if seconds is not None:
                    draft[proposer.name] = seconds
    strategy.take_costs(Costs(context, forward, draft))


def _draft_seconds(proposer: Proposer, newest: mx.array) -> float | None:
    """Time of one more drafted token; `None` from a proposer that abstains."""
    lengths: list[int] = []

    def draft(depth: int) -> None:
        tokens = checked_draft(proposer, proposer.propose(newest, depth, _likeliest), depth).tokens
        mx.eval(tokens)
        proposer.settle()
        lengths.append(tokens.shape[0])

    few, many = (_fastest(partial(draft, depth)) for depth in DRAFTS)
    if lengths[-1] <= lengths[0]:
        return None
    return max(many - few, 1e-7) / (lengths[-1] - lengths[0])


def _likeliest(logits: mx.array, index: int, /) -> Choice:
    return Choice(mx.argmax(logits, axis=-1))


def _fastest(act: Callable[[], None]) -> float:
    act()
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        act()
        times.append(time.perf_counter() - began)
    return min(times)


def _key(setup: Setup) -> str | None:
    """Tells a target with its proposers on a machine apart from others."""
    if not isinstance(setup.model, Fingerprinted):
        return None
    parts = [setup.model.fingerprint]
    for proposer in setup.strategy.proposers:
        own = proposer.fingerprint if isinstance(proposer, Fingerprinted) else ""
        parts.append(f"{proposer.name} {own}")
    return "\n".join([*parts, _device(), f"mlx {mlx_version()}"])


def _device() -> str:
    kind = mx.default_device().type
    return f"{kind} {mx.device_info(kind).get('device_name', '')}"
