"""The target's choice of tokens: processors over the whole text, then a rule for the drafts."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from typing import cast, final

import mlx.core as mx

from speculate.protocols import Choice, Decision, Draft, Sampler
from speculate.sampling.acceptance import (
    BlockVerification,
    ByEquality,
    CallableChooser,
    Coupled,
    Greedy,
    Rejection,
    Rule,
    SamplerCallable,
)
from speculate.sampling.filters import Law
from speculate.sampling.options import Sampling
from speculate.sampling.processors import Processor, Processors, penalties


@final
class Pipeline:
    """Chooses the tokens of one text.

    Args:
        rule: How drafts are judged.
        processors: Applied to the target's logits first.
    """

    def __init__(self, rule: Rule, processors: Processors) -> None:
        self._rule = rule
        self._processors = processors
        self._history = mx.zeros((0,), dtype=mx.uint32)
        self._position = 0
        self._stop_tokens: Collection[int] = ()

    @property
    def launches_ahead(self) -> bool:
        return self._processors.pure

    def begin(self, history: Sequence[int], position: int, stop_tokens: Collection[int], /) -> None:
        self._history = mx.array(list(history), dtype=mx.uint32)
        self._position = position
        self._stop_tokens = stop_tokens

    def choose(self, logits: mx.array, index: int, /) -> Choice:
        return self._rule.choose(logits, self._position + 1 + index)

    def verify(self, newest: mx.array, draft: Draft, logits: mx.array, /) -> Decision:
        if len(self._processors):
            text = mx.concatenate([self._history, newest, draft.tokens])
            if not self._processors.pure:
                return self._row_by_row(text, draft, logits)
            rows = [self._processed(text, draft, logits, row) for row in range(logits.shape[0])]
            logits = mx.concatenate(rows)
        judged = self._rule.judge(logits, self._positions(0, logits.shape[0]), draft)
        return Decision(judged.accepted, judged.tokens, logits)

    def keep(self, tokens: mx.array, /) -> None:
        self._position += tokens.shape[0]
        if len(self._processors):
            self._history = mx.concatenate([self._history, tokens])
            mx.async_eval(self._history)  # a processor may read it first in another thread

    def _processed(self, text: mx.array, draft: Draft, logits: mx.array, row: int) -> mx.array:
        known = text.shape[0] - draft.tokens.shape[0] + row
        return self._processors.apply(text[:known], logits[row : row + 1])

    def _positions(self, row: int, count: int) -> range:
        """Positions in the text of the tokens that `count` rows are for."""
        first = self._position + 1 + row
        return range(first, first + count)

    def _row_by_row(self, text: mx.array, draft: Draft, logits: mx.array) -> Decision:
        """Show processors a row only when it is sure to be text. Synchronises once a row."""
        rows: list[mx.array] = []
        tokens: list[mx.array] = []
        while True:
            row = len(rows)
            rows.append(self._processed(text, draft, logits, row))
            one = Draft(draft.tokens[row : row + 1], draft.laws[row : row + 1])
            judged = self._rule.judge(rows[-1], self._positions(row, 1), one)
            if cast(int, judged.accepted.item()) == 0:
                tokens.append(judged.tokens)
                break
            tokens.append(one.tokens)
            if cast(int, one.tokens.item()) in self._stop_tokens:
                # The text ends with this draft: nothing is asked of the processors behind it.
                tokens.append(one.tokens)
                break
        accepted = mx.array(len(tokens) - 1, dtype=mx.int32)
        scored = mx.concatenate(rows)
        mx.async_eval(scored)  # whoever reads scores may do it in another thread
        return Decision(accepted, mx.concatenate(tokens), scored)


@final
class Choosing:
    """Makes a sampler for each text of a decoder.

    Args:
        sampling: Options, or a sampler of mlx-lm.
        processors: The caller's logits processors.

    Raises:
        OptionError: A processor may keep state and cannot be forked.
    """

    def __init__(
        self, sampling: Sampling | SamplerCallable, processors: Sequence[Processor]
    ) -> None:
        self._sampling = sampling
        own = penalties(sampling) if isinstance(sampling, Sampling) else []
        self._processors = Processors(own, processors)

    def begin_text(self) -> tuple[Sampler, int | None]:
        """A sampler for one text, and the seed to have that text again.

        Without a seed in the options a fresh one is drawn. It is `None` where nothing is
        drawn, or by somebody else's sampler.
        """
        seed: int | None = None
        if isinstance(self._sampling, Sampling) and self._sampling.temperature > 0:
            given = self._sampling.seed
            seed = secrets.randbits(63) if given is None else given
        self._processors.restart()
        return self.sampler(seed or 0), seed

    def sampler(self, seed: int) -> Sampler:
        """A sampler that goes on with the processors as they are."""
        return Pipeline(_rule(self._sampling, seed), self._processors)


def _rule(sampling: Sampling | SamplerCallable, seed: int) -> Rule:
    """How the drafts of one text are judged."""
    if not isinstance(sampling, Sampling):
        return ByEquality(CallableChooser(sampling))
    if sampling.temperature == 0:
        return ByEquality(Greedy())
    law = Law(sampling, seed)
    if sampling.mode == "rejection":
        return Rejection(law)
    if sampling.mode == "block":
        return BlockVerification(law)
    return ByEquality(Coupled(law))
