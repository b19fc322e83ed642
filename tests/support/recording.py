"""Parts that watch what a run does, and fail when they are told to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from typing import final

import attrs
import mlx.core as mx

from speculate import SpeculativeModel
from speculate._mx import to_ints
from speculate.protocols import (
    Commit,
    Draft,
    DraftSampler,
    Forward,
    MTPHead,
    Plan,
    Proposer,
    Rollbackable,
    Round,
    Strategy,
)

Tick = Callable[[str], None]


class Broken(Exception):
    """What a part raises when it is told to."""


@final
@attrs.define
class Ticker:
    """Counts calls by place, and raises at one of them.

    Attributes:
        place: Where to raise; "" for nowhere.
        at: Which call there, 1 for the first.
        error: What to raise.
        calls: So far.
        before: Calls when it raised.
        then: Called when it raises.
    """

    place: str = ""
    at: int = 0
    error: BaseException = attrs.Factory(lambda: Broken("told to"))
    calls: Counter[str] = attrs.Factory(Counter)
    before: Counter[str] = attrs.Factory(Counter)
    then: Callable[[], None] = lambda: None

    def __call__(self, place: str) -> None:
        self.calls[place] += 1
        if place == self.place and self.calls[place] == self.at:
            self.before = Counter(self.calls)
            self.then()
            raise self.error


def quiet(_: str) -> None:
    """Nobody watches."""


class PassingModel:
    """A model that does what another one does."""

    def __init__(self, model: SpeculativeModel) -> None:
        self.inner = model

    @property
    def vocab_size(self) -> int:
        return self.inner.vocab_size

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return self.inner.eos_token_ids

    @property
    def head(self) -> MTPHead | None:
        return self.inner.head

    @property
    def vocabulary(self) -> Mapping[str, int] | None:
        return self.inner.vocabulary

    def make_cache(
        self, max_kv_size: int | None = None, *, position: int = 0
    ) -> list[Rollbackable]:
        return self.inner.make_cache(max_kv_size, position=position)

    def adopt(self, cache: Sequence[object], /) -> list[Rollbackable]:
        return self.inner.adopt(cache)

    def forward(
        self, tokens: mx.array, cache: Sequence[object], /, *, taps: Sequence[int] = ()
    ) -> Forward:
        return self.inner.forward(tokens, cache)


@final
class WatchedModel(PassingModel):
    """A model whose forwards are counted, before and after.

    Attributes:
        widths: Tokens of each forward.
        cache: What the latest forward was fed into.
    """

    def __init__(self, model: SpeculativeModel, tick: Tick = quiet, place: str = "target") -> None:
        super().__init__(model)
        self._tick = tick
        self._place = place
        self.widths: list[int] = []
        self.cache: Sequence[object] = ()

    def forward(
        self, tokens: mx.array, cache: Sequence[object], /, *, taps: Sequence[int] = ()
    ) -> Forward:
        self._tick(self._place)
        out = self.inner.forward(tokens, cache)
        self.widths.append(tokens.shape[1])
        self.cache = cache
        self._tick(f"{self._place} done")
        return out

    def lengths(self) -> set[int]:
        """Tokens in each layer of the latest cache."""
        return {layer.length() for layer in self.cache if isinstance(layer, Rollbackable)}


@final
class GuidedModel(PassingModel):
    """Feeds a real model, caches and all, but says what a text says next.

    So a random draft model of any family is right, except where it shall not be.

    Args:
        model: The model.
        text: The whole text. Behind its end the model speaks for itself.
        wrong: Positions in the text that it gets wrong.
    """

    def __init__(
        self, model: SpeculativeModel, text: Sequence[int], wrong: Container[int] = ()
    ) -> None:
        super().__init__(model)
        self._text = list(text)
        self._wrong = wrong

    def forward(
        self, tokens: mx.array, cache: Sequence[object], /, *, taps: Sequence[int] = ()
    ) -> Forward:
        out = self.inner.forward(tokens, cache)
        length = max(layer.length() for layer in cache if isinstance(layer, Rollbackable))
        said = said_at(self._text, length, self._wrong)
        if said is None:
            return out
        loud = mx.where(mx.arange(out.logits.shape[-1]) == said, 1e6, 0.0)
        return Forward(out.logits + loud, out.hidden)


def said_at(text: Sequence[int], position: int, wrong: Container[int]) -> int | None:
    """What one who knows a text says at a position, right or one off."""
    if position >= len(text):
        return None
    return (text[position] + 1) % 64 if position in wrong else text[position]


def wrong_after(accepts: Sequence[int], start: int, depth: int) -> frozenset[int]:
    """Positions to get wrong so that rounds of `depth` drafts accept what is listed.

    Args:
        accepts: Drafts to be accepted, round by round.
        start: Position in the text of the first draft.
        depth: Drafts of each round.
    """
    wrong, at = set(), start
    for accepted in accepts:
        if accepted < depth:
            wrong.add(at + accepted)
        at += accepted + 1
    return frozenset(wrong)


class WatchedProposer:
    """A proposer whose calls are counted, and whose drafts are remembered.

    Attributes:
        drafts: Length of the text before the last token, the last token, and the draft.
        commits: Tokens, drafted and accepted of each commit; -1 where there was no verdict.
        begins: Positions of the texts that it was told to forget.
    """

    def __init__(self, inner: Proposer, tick: Tick = quiet) -> None:
        self.inner = inner
        self._tick = tick
        self.drafts: list[tuple[int, int, list[int]]] = []
        self.commits: list[tuple[int, int, int]] = []
        self.begins: list[int] = []

    @property
    def name(self) -> str:
        return self.inner.name

    def attach(self, target: SpeculativeModel, /) -> None:
        self._tick("attach")
        self.inner.attach(target)

    def begin(self, position: int, history: Sequence[int] = (), /) -> None:
        self._tick("begin")
        self.begins.append(position)
        self.inner.begin(position, history)

    def position(self) -> int:
        return self.inner.position()

    def commit(self, commit: Commit, /) -> None:
        self._tick("commit")
        verdict = commit.verdict
        counts = (-1, -1) if verdict is None else (verdict.drafted, verdict.accepted)
        self.commits.append((commit.tokens.shape[0], *counts))
        self.inner.commit(commit)
        self._tick("commit done")

    def propose(self, last_token: mx.array, limit: int, choose: DraftSampler, /) -> Draft:
        self._tick("propose")
        draft = self.inner.propose(last_token, limit, choose)
        self.drafts.append((self.position(), to_ints(last_token)[0], to_ints(draft.tokens)))
        self._tick("propose done")
        return draft

    def settle(self) -> None:
        self._tick("settle")
        self.inner.settle()
        self._tick("settle done")


@final
class WatchedStrategy:
    """A strategy whose calls are counted."""

    def __init__(self, inner: Strategy, tick: Tick = quiet) -> None:
        self._inner = inner
        self._tick = tick

    @property
    def proposers(self) -> Sequence[Proposer]:
        return self._inner.proposers

    def begin(self) -> None:
        self._inner.begin()

    def plan(self, remaining: int | None, /) -> Plan:
        self._tick("plan")
        plan = self._inner.plan(remaining)
        self._tick("plan done")
        return plan

    def observe(self, round: Round, /) -> None:
        self._tick("observe")
        self._inner.observe(round)
        self._tick("observe done")
