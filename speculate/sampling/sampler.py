"""The sampler of one sequence: logits processors, then an acceptance rule."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import cast, final

import mlx.core as mx

from speculate.protocols import Draft, DraftToken, Sampler, Verification
from speculate.sampling.acceptance import (
    AcceptanceRule,
    BlockVerification,
    CallablePicker,
    Coupled,
    Greedy,
    Rejection,
    SamplerCallable,
)
from speculate.sampling.filters import Distribution
from speculate.sampling.options import Sampling
from speculate.sampling.processors import Processor, Processors, penalties


@final
class TokenSampler:
    """Chooses the tokens of one sequence: applies processors, then a rule, to target logits."""

    def __init__(self, rule: AcceptanceRule, processors: Processors) -> None:
        self._rule = rule
        self._processors = processors
        self._history = mx.zeros((0,), dtype=mx.uint32)
        self._position = 0
        self._stop_tokens: Collection[int] = ()

    @property
    def supports_lookahead(self) -> bool:
        return self._processors.is_stateless

    def begin(self, history: Sequence[int], position: int, stop_tokens: Collection[int], /) -> None:
        self._history = mx.array(list(history), dtype=mx.uint32)
        self._position = position
        self._stop_tokens = stop_tokens

    def choose(self, logits: mx.array, index: int, /) -> DraftToken:
        return self._rule.choose(logits, self._position + 1 + index)

    def verify(self, last_token: mx.array, draft: Draft, logits: mx.array, /) -> Verification:
        if len(self._processors):
            tokens = mx.concatenate([self._history, last_token, draft.tokens])
            if not self._processors.is_stateless:
                return self._verify_row_by_row(tokens, draft, logits)
            rows = [self._processed(tokens, draft, logits, row) for row in range(logits.shape[0])]
            logits = mx.concatenate(rows)
        first = self._position + 1
        positions = range(first, first + logits.shape[0])
        return self._rule.verify(logits, positions, draft)

    def commit(self, tokens: mx.array, /) -> None:
        self._position += tokens.shape[0]
        if len(self._processors):
            self._history = mx.concatenate([self._history, tokens])
            # A processor may read it in another thread, where this thread's streams are unknown.
            mx.async_eval(self._history)

    def _processed(self, tokens: mx.array, draft: Draft, logits: mx.array, row: int) -> mx.array:
        known = tokens.shape[0] - draft.tokens.shape[0] + row
        return self._processors.apply(tokens[:known], logits[row : row + 1])

    def _verify_row_by_row(self, tokens: mx.array, draft: Draft, logits: mx.array) -> Verification:
        """Verify drafts one by one, calling processors only for rows whose prefix is accepted.

        Synchronises once per row.
        """
        rows: list[mx.array] = []
        emitted: list[mx.array] = []
        while True:
            row = len(rows)
            rows.append(self._processed(tokens, draft, logits, row))
            one = Draft(draft.tokens[row : row + 1], draft.logprobs[row : row + 1])
            verified = self._rule.verify(rows[-1], [self._position + 1 + row], one)
            if cast(int, verified.accepted.item()) == 0:
                emitted.append(verified.tokens)
                break
            emitted.append(one.tokens)
            if cast(int, one.tokens.item()) in self._stop_tokens:
                # The sequence ends here. No processor sees the bonus token, so any id will do.
                emitted.append(one.tokens)
                break
        accepted = mx.array(len(emitted) - 1, dtype=mx.int32)
        processed = mx.concatenate(rows)
        # Log-probabilities may be read in another thread.
        mx.async_eval(processed)
        return Verification(accepted, mx.concatenate(emitted), processed)


@final
class SamplerFactory:
    """Makes a sampler for each sequence of a decoder.

    Raises:
        OptionError: A processor may keep state and has no `fork()`.
    """

    def __init__(
        self, sampling: Sampling | SamplerCallable, processors: Sequence[Processor]
    ) -> None:
        self._sampling = sampling
        own = penalties(sampling) if isinstance(sampling, Sampling) else []
        self._processors = Processors(own, processors)

    def begin_sequence(self) -> tuple[Sampler, int | None]:
        """A sampler for one sequence, and the seed that reproduces it, drawn if none is given.

        The seed is `None` for greedy decoding and for an mlx-lm sampler.
        """
        seed: int | None = None
        if isinstance(self._sampling, Sampling) and self._sampling.temperature > 0:
            seed = self._sampling.seed
            if seed is None:
                seed = int.from_bytes(os.urandom(8), "big") >> 1  # 63 bits
        self._processors.reset()
        return self.sampler(seed or 0), seed

    def sampler(self, seed: int) -> Sampler:
        """A sampler that continues with the current state of the processors."""
        return TokenSampler(_acceptance_rule(self._sampling, seed), self._processors)


def _acceptance_rule(sampling: Sampling | SamplerCallable, seed: int) -> AcceptanceRule:
    """The acceptance rule for one sequence."""
    if not isinstance(sampling, Sampling):
        return CallablePicker(sampling)
    if sampling.temperature == 0:
        return Greedy()
    distribution = Distribution(sampling, seed)
    if sampling.mode == "rejection":
        return Rejection(distribution)
    if sampling.mode == "block":
        return BlockVerification(distribution)
    return Coupled(distribution)
