"""What the formula of the speedup is made of: forwards of the target, and steps of a draft.

    speedup(k) = (1 + S_1 + ... + S_k) / (v(k + 1) + c_1 + ... + c_k)

Each is measured by itself, in turns with the rounds that are made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx

from benchmarks.clock import now
from benchmarks.turns import Task, Turn
from speculate import SpeculativeModel, speculation
from speculate.protocols import MTPHead, Rollbackable


def forwards(
    model: SpeculativeModel, caches: Sequence[Rollbackable], prompt: Sequence[int], rows: int
) -> Task:
    """Forwards of `rows` rows behind a prompt, with the choice of a token in each."""
    fed = mx.array([(list(prompt) * rows)[-rows:]], dtype=mx.uint32)

    def forward() -> None:
        logits = model.forward(fed, caches).logits[0]
        chosen = mx.argmax(logits - mx.logsumexp(logits, axis=-1, keepdims=True), axis=-1)
        mx.eval(chosen, [cache.arrays() for cache in caches])

    return _repeated(caches, forward)


def draft_chain(
    draft: SpeculativeModel,
    caches: Sequence[Rollbackable],
    prompt: Sequence[int],
    rows: int,
    depth: int,
) -> Task:
    """Drafts of a second model: `rows` rows to catch up with, then token by token."""
    first = mx.array([(list(prompt) * rows)[-rows:]], dtype=mx.uint32)

    def chain() -> None:
        tokens = first
        for _ in range(depth):
            out = draft.forward(tokens, caches)
            tokens = mx.argmax(out.logits[:, -1], axis=-1)[None]
            mx.async_eval(tokens)
        mx.eval(tokens, [cache.arrays() for cache in caches])

    return _repeated(caches, chain)


def head_chain(
    head: MTPHead,
    caches: list[Rollbackable],
    hidden: mx.array,
    prompt: Sequence[int],
    depth: int,
) -> Task:
    """Drafts of a head, which feeds on its own output from the second one on.

    Args:
        head: The head.
        caches: Its caches, behind the prompt.
        hidden: `(1, rows, width)`, of the target: rows to catch up with.
        prompt: Ids.
        depth: Tokens to draft.
    """
    rows = hidden.shape[1]
    first = mx.array([(list(prompt) * rows)[-rows:]], dtype=mx.uint32)

    def chain() -> None:
        tokens, state = first, hidden
        for _ in range(depth):
            out = head.step(state, tokens, caches)
            state, tokens = out.hidden[:, -1:], mx.argmax(out.logits[:, -1], axis=-1)[None]
        mx.eval(tokens, [cache.arrays() for cache in caches])

    return _repeated(caches, chain)


def prefilled(
    model: SpeculativeModel, prompt: Sequence[int]
) -> tuple[list[Rollbackable], mx.array]:
    """Caches that hold a prompt, and its hidden states `(1, T, width)`."""
    caches = model.make_cache()
    hidden = model.forward(mx.array([list(prompt)], dtype=mx.uint32), caches).hidden
    mx.eval(hidden, [cache.arrays() for cache in caches])
    return caches, hidden


def prefilled_head(head: MTPHead, hidden: mx.array, prompt: Sequence[int]) -> list[Rollbackable]:
    """A head's caches, with a row for each token of the prompt but the first."""
    caches = head.make_cache()
    tokens = mx.array([list(prompt[1:])], dtype=mx.uint32)
    mx.eval(head.step(hidden[:, :-1], tokens, caches).hidden)
    return caches


def _repeated(caches: Sequence[Rollbackable], act: Callable[[], None]) -> Task:
    """What is fed is taken back each time, outside of the time that counts."""
    while True:
        with speculation(caches) as window:
            began = now()
            act()
            seconds = now() - began
            window.keep(0)
        yield Turn(1, seconds)
