"""Measures the time of target forwards and drafts on the current sequence, then rewinds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import mlx.core as mx

from speculate._mx import mlx_version
from speculate.decoding.config import DecoderConfig
from speculate.decoding.proposer_pool import validated_draft
from speculate.decoding.target import TargetRunner
from speculate.protocols import (
    Costs,
    DraftToken,
    Proposer,
    SupportsCosts,
    SupportsFingerprint,
    SupportsFreeDrafts,
)

ROWS: Final = (1, 2, 3, 5, 9)
"""Rows per timed forward, in tokens."""

REPEATS: Final = 2
"""Timed runs after one warm-up run; the fastest counts."""

DRAFTS: Final = (1, 4)
"""Timed depths, in tokens. Their difference excludes the proposer's backlog."""


def probe_costs(
    config: DecoderConfig,
    target: TargetRunner,
    text: Sequence[int],
    context: int,
    remaining: int | None,
) -> None:
    """Measure costs for a strategy that needs them. Leaves every cache unchanged.

    Args:
        config: The decoder's parts.
        target: Holds the sequence in its caches, except the last token.
        text: Ids to feed in these forwards, ending with the last token.
        context: Length of the sequence before them, in tokens.
        remaining: Most tokens still to emit; `None` without a limit.
    """
    strategy = config.strategy
    if not isinstance(strategy, SupportsCosts):
        return
    if not strategy.needs_costs(_key(config), context, remaining):
        return
    room = target.room_for_drafts()
    forward: dict[int, float] = {}
    for rows in ROWS:
        if room is None or rows <= room + 1:
            ids = (list(text) * rows)[-rows:]
            forward[rows] = _best_of(partial(target.dry_run, ids))
    if len(forward) < 2:
        return
    last_token = mx.array([text[-1]], dtype=mx.uint32)
    draft: dict[str, float] = {}
    for proposer in strategy.proposers:
        free = isinstance(proposer, SupportsFreeDrafts) and proposer.free
        if config.proposers.is_active(proposer) and not free:
            with config.proposers.isolating(proposer):
                seconds = _draft_seconds(proposer, last_token)
                if seconds is not None:
                    draft[proposer.name] = seconds
    strategy.set_costs(Costs(context, forward, draft))


def _draft_seconds(proposer: Proposer, last_token: mx.array) -> float | None:
    """Return the seconds per additional drafted token; `None` if the proposer abstains."""
    lengths: list[int] = []

    def draft(depth: int) -> None:
        tokens = validated_draft(
            proposer, proposer.propose(last_token, depth, _argmax), depth
        ).tokens
        mx.eval(tokens)
        proposer.settle()
        lengths.append(tokens.shape[0])

    few, many = (_best_of(partial(draft, depth)) for depth in DRAFTS)
    if lengths[-1] <= lengths[0]:
        return None
    return max(many - few, 1e-7) / (lengths[-1] - lengths[0])


def _argmax(logits: mx.array, index: int, /) -> DraftToken:
    return DraftToken(mx.argmax(logits, axis=-1))


def _best_of(act: Callable[[], None]) -> float:
    act()
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        act()
        times.append(time.perf_counter() - began)
    return min(times)


def _key(config: DecoderConfig) -> str | None:
    """Identify a target with its proposers on this machine; `None` without a fingerprint."""
    if not isinstance(config.model, SupportsFingerprint):
        return None
    parts = [config.model.fingerprint]
    for proposer in config.strategy.proposers:
        own = proposer.fingerprint if isinstance(proposer, SupportsFingerprint) else ""
        parts.append(f"{proposer.name} {own}")
    return "\n".join([*parts, _device(), f"mlx {mlx_version()}"])


def _device() -> str:
    kind = mx.default_device().type
    return f"{kind} {mx.device_info(kind).get('device_name', '')}"
