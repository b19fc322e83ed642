"""Who drafts, and a second way to the same drafts that has no rounds, and so nothing to rewind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast, final

import attrs
import mlx.core as mx

from speculate.errors import HeadNotFoundError
from speculate.proposers.draft_model import DraftModel, clamp_ids
from speculate.proposers.mtp_chain import MTPChain
from speculate.protocols import Choose, Commit, Proposer, SpeculativeModel
from speculate.testing.verify.oracle import row

Redraft = Callable[[int, int, Choose], list[int]]
"""`redraft(position, depth, choose)` drafts behind the first `position` tokens of a text."""

Offline = Callable[[SpeculativeModel, Sequence[int]], Redraft]
"""Gets ready to draft for a target anywhere in a text."""


@final
@attrs.frozen
class Drafter:
    """Who drafts.

    Attributes:
        name: In reports.
        make: A fresh proposer.
        offline: The same drafts, each made from the text alone.
    """

    name: str
    make: Callable[[], Proposer]
    offline: Offline


def by_head() -> Drafter:
    """The model's own multi-token-prediction head."""
    return Drafter("mtp", MTPChain, _head_afresh)


def by_model(draft: SpeculativeModel) -> Drafter:
    """A second model."""

    def offline(target: SpeculativeModel, text: Sequence[int]) -> Redraft:
        shared = min(draft.vocab_size, target.vocab_size)

        def redraft(position: int, depth: int, choose: Choose) -> list[int]:
            if text[position - 1] >= draft.vocab_size:
                return []
            caches = draft.make_cache()
            block, drafts = row(clamp_ids(draft, text[:position])), list[int]()
            while len(drafts) < depth:
                logits = draft.forward(block, caches).logits[:, -1, :shared]
                drafts.append(_picked(choose, logits, len(drafts)))
                block = row(drafts[-1:])
            return drafts

        return redraft

    return Drafter("draft", lambda: DraftModel(draft), offline)


def by(make: Callable[[], Proposer]) -> Drafter:
    """Any proposer. Offline it is told the whole text at once, by a fresh one for each draft.

    Args:
        make: Makes a fresh proposer.
    """

    def offline(target: SpeculativeModel, text: Sequence[int]) -> Redraft:
        hidden = _hidden(target, text)

        def redraft(position: int, depth: int, choose: Choose) -> list[int]:
            proposer, committed = make(), list(text[: position - 1])
            proposer.attach(target)
            proposer.begin(0)
            if committed:
                tokens = mx.array(committed, dtype=mx.uint32)
                known = Commit(tokens, hidden[:, : position - 1], None, committed)
                proposer.commit(known)
            newest = mx.array([text[position - 1]], dtype=mx.uint32)
            return cast("list[int]", proposer.propose(newest, depth, choose).tokens.tolist())

        return redraft

    return Drafter(make().name, make, offline)


def _head_afresh(target: SpeculativeModel, text: Sequence[int]) -> Redraft:
    """The head over all true rows in one batch, and a chain behind the last of them."""
    head = target.head
    if head is None:
        raise HeadNotFoundError("the model has no multi-token-prediction head to draft with")
    hidden = _hidden(target, text)

    def redraft(position: int, depth: int, choose: Choose) -> list[int]:
        # Row i pairs the hidden state of token i with token i + 1.
        state, tokens = hidden[:, : position - 1], row(text[1:position])
        caches, drafts = head.make_cache(), list[int]()
        while len(drafts) < depth and state.shape[1]:
            out = head.step(state, tokens, caches)
            drafts.append(_picked(choose, out.logits[:, -1], len(drafts)))
            state, tokens = out.hidden[:, -1:], row(drafts[-1:])
        return drafts

    return redraft


def _hidden(target: SpeculativeModel, text: Sequence[int]) -> mx.array:
    """`(1, T, width)`, of a cold prefill."""
    hidden = target.forward(row(text), target.make_cache()).hidden
    mx.eval(hidden)
    return hidden


def _picked(choose: Choose, logits: mx.array, index: int) -> int:
    return cast(int, choose(logits, index).token.item())
