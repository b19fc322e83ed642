"""The model under verification, its drafters, and the sequence that checks feed to it.

Each drafter has a second way to compute its drafts, which uses the sequence alone. It runs no
rounds and rewinds nothing, so the two agree only if the proposer stays in step with the sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Final, final

import attrs
import mlx.core as mx

from speculate._mx import to_ints
from speculate.backends.rotating import RewindableRotatingKVCache
from speculate.errors import HeadNotFoundError, OptionError
from speculate.models.adapter import StockAdapter
from speculate.proposers.draft_model import DraftModel, clamp_ids
from speculate.proposers.mtp_chain import MTPChain
from speculate.protocols import Commit, Draft, DraftSampler, Proposer, SpeculativeModel, StockModel
from speculate.sampling.options import Sampling
from speculate.verify.oracle import Oracle, ReferenceSequence, token_row
from speculate.verify.rounding import Difference, Rounding

PROMPT_TOKENS: Final = 32
"""Tokens of the shortest prompt, and of the sequence whose rounding is measured."""

BEYOND_WINDOWS: Final = 10
"""Tokens of a prompt beyond two full sliding windows."""

Redraft = Callable[[int, int, DraftSampler], list[int]]
"""`redraft(position, depth, choose)` drafts after the first `position` tokens of a sequence."""

Offline = Callable[[SpeculativeModel, Sequence[int]], Redraft]
"""`offline(target, ids)` prepares a `Redraft` for one sequence."""


@final
@attrs.frozen
class Drafter:
    """A proposer under verification.

    Attributes:
        name: Its name in reports.
        make: Makes a new proposer.
        offline: Computes the same drafts from the sequence alone.
    """

    name: str
    make: Callable[[], Proposer]
    offline: Offline


@final
class RecordingProposer:
    """A proposer that records the limit and the ids of every draft of another one, unless empty."""

    def __init__(self, proposer: Proposer) -> None:
        self.name: str = proposer.name
        self.drafts: list[tuple[int, mx.array]] = []
        self._inner = proposer

    def attach(self, target: SpeculativeModel, /) -> None:
        self._inner.attach(target)

    def begin(self, position: int, history: Sequence[int] = (), /) -> None:
        self._inner.begin(position, history)

    def position(self) -> int:
        return self._inner.position()

    def commit(self, commit: Commit, /) -> None:
        self._inner.commit(commit)

    def settle(self) -> None:
        self._inner.settle()

    def propose(self, last_token: mx.array, limit: int, choose: DraftSampler, /) -> Draft:
        draft = self._inner.propose(last_token, limit, choose)
        if draft.tokens.shape[0]:
            self.drafts.append((limit, draft.tokens))
        return draft


def head_drafter() -> Drafter:
    """The model's own multi-token-prediction head."""
    return Drafter("mtp", MTPChain, _head_offline)


def model_drafter(draft: SpeculativeModel) -> Drafter:
    """A draft model."""

    def offline(target: SpeculativeModel, ids: Sequence[int]) -> Redraft:
        shared = min(draft.vocab_size, target.vocab_size)

        def redraft(position: int, depth: int, choose: DraftSampler) -> list[int]:
            if ids[position - 1] >= draft.vocab_size:
                return []
            caches = draft.make_cache()
            block, drafts = token_row(clamp_ids(draft, ids[:position])), list[int]()
            while len(drafts) < depth:
                logits = draft.forward(block, caches).logits[:, -1, :shared]
                drafts += to_ints(choose(logits, len(drafts)).token)
                block = token_row(drafts[-1:])
            return drafts

        return redraft

    return Drafter("draft", lambda: DraftModel(draft), offline)


def proposer_drafter(make: Callable[[], Proposer]) -> Drafter:
    """Any proposer that `make` returns.

    Each draft is recomputed by a new one that gets the sequence in one commit.
    """

    def offline(target: SpeculativeModel, ids: Sequence[int]) -> Redraft:
        hidden = _hidden(target, ids)

        def redraft(position: int, depth: int, choose: DraftSampler) -> list[int]:
            proposer, committed = make(), list(ids[: position - 1])
            proposer.attach(target)
            proposer.begin(0)
            if committed:
                tokens = mx.array(committed, dtype=mx.uint32)
                proposer.commit(Commit(tokens, hidden[:, : position - 1], None, committed))
            last = mx.array([ids[position - 1]], dtype=mx.uint32)
            return to_ints(proposer.propose(last, depth, choose).tokens)

        return redraft

    return Drafter(make().name, make, offline)


def _head_offline(target: SpeculativeModel, ids: Sequence[int]) -> Redraft:
    """Run the head over all true rows in one batch, then chain it from the last one."""
    head = target.head
    if head is None:
        raise HeadNotFoundError("the model has no multi-token-prediction head to draft with")
    hidden = _hidden(target, ids)

    def redraft(position: int, depth: int, choose: DraftSampler) -> list[int]:
        # Row i pairs the hidden state of token i with token i + 1.
        state, tokens = hidden[:, : position - 1], token_row(ids[1:position])
        caches, drafts = head.make_cache(), list[int]()
        while len(drafts) < depth and state.shape[1]:
            out = head.step(state, tokens, caches)
            drafts += to_ints(choose(out.logits[:, -1], len(drafts)).token)
            state, tokens = out.hidden[:, -1:], token_row(drafts[-1:])
        return drafts

    return redraft


def _hidden(target: SpeculativeModel, ids: Sequence[int]) -> mx.array:
    """Hidden states of a cold prefill, `(1, T, width)`."""
    hidden = target.forward(token_row(ids), target.make_cache()).hidden
    mx.eval(hidden)
    return hidden


@final
class VerificationTarget:
    """The model under verification.

    Args:
        model: The model.
        ids: Token ids from which prompts are taken, repeated from the start where they end.
        drafters: Proposers to verify with the model.
        stock: mlx-lm's model that `model` drives. By default that of a `StockAdapter`; without
            one the model is compared with itself.
        tokens: Number of tokens decoded in each run.
        seed: Seed of sampled runs.

    Attributes:
        oracle: Computes expected logits.
        window: Rows of the widest sliding window; 0 without one.

    Raises:
        OptionError: `tokens` is below 1, or `ids` is empty or has ids outside the vocabulary.
        CannotRewindError: A layer has a cache that cannot be rewound.
    """

    def __init__(
        self,
        model: SpeculativeModel,
        ids: Sequence[int],
        *,
        drafters: Iterable[Drafter] = (),
        stock: StockModel | None = None,
        tokens: int = 32,
        seed: int = 0,
    ) -> None:
        if tokens < 1:
            raise OptionError(f"tokens must be at least 1, got {tokens}")
        if not ids or not all(0 <= id_ < model.vocab_size for id_ in ids):
            raise OptionError(f"ids must not be empty, and all below {model.vocab_size}")
        if stock is None and isinstance(model, StockAdapter):
            stock = model.stock
        self.model = model
        self.drafters: list[Drafter] = list(drafters)
        self.oracle: Oracle = Oracle(model, stock)
        self.tokens = tokens
        self.seed = seed
        made = model.make_cache()
        sliding = [cache for cache in made if isinstance(cache, RewindableRotatingKVCache)]
        self.window: int = max((int(cache.max_size) for cache in sliding), default=0)
        self._ids = list(ids)
        self._references: dict[Sampling, ReferenceSequence] = {}
        self._spreads: dict[tuple[int, ...], list[float]] = {}

    def ids(self, start: int, stop: int) -> list[int]:
        """Tokens `start` to `stop` of the endless repetition of `ids`."""
        return [self._ids[position % len(self._ids)] for position in range(start, stop)]

    @property
    def prompt(self) -> list[int]:
        """The prompt of every decoding run."""
        # Only the rewind check fills a wider window twice, since it feeds the long prefix once.
        twice = 2 * self.window + BEYOND_WINDOWS if 0 < self.window <= 256 else 0
        return self.ids(0, max(PROMPT_TOKENS, twice))

    @cached_property
    def rounding(self) -> Rounding:
        """Rounding of this model on this machine, measured on first use."""
        return Rounding(self.oracle.noise(self.ids(0, PROMPT_TOKENS), self.window))

    def reference(self, sampling: Sampling) -> ReferenceSequence:
        """The sequence that plain decoding continues the prompt with. Decoded once."""
        if sampling not in self._references:
            made = ReferenceSequence(self.model, self.prompt, self.tokens, sampling)
            self._references[sampling] = made
        return self._references[sampling]

    def spread(self, ids: Sequence[int], first: int) -> list[float]:
        """`Oracle.spread` of a sequence. Measured once."""
        if (key := (first, *ids)) not in self._spreads:
            self._spreads[key] = self.oracle.spread(ids, first)
        return self._spreads[key]

    def recheck(
        self, differences: Sequence[Difference], ids: Sequence[int], first: int, position: int
    ) -> list[Difference]:
        """Classify suspected mistakes of a sequence again: see `Rounding.recheck`.

        `first` is the index of the first token whose logits were compared, and `position` what
        the differences call it.
        """
        return self.rounding.recheck(differences, lambda: self.spread(ids, first), position)
