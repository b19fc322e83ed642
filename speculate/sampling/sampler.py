"""The sampler of one sequence: logits processors, then an acceptance rule."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from typing import cast, final

import mlx.core as mx

from speculate._mx import clamped_ids
from speculate.errors import OptionError, SpeculateError
from speculate.protocols import Draft, DraftToken, Sampler, Verification
from speculate.sampling.acceptance import (
    AcceptanceRule,
    CallablePicker,
    Greedy,
    SamplerCallable,
    acceptance_rule,
)
from speculate.sampling.filters import Distribution
from speculate.sampling.options import Sampling
from speculate.sampling.processors import Processor, Processors, penalties


@final
class TokenSampler:
    """Chooses the tokens of one sequence.

    Args:
        make_rule: Makes the rule that verifies drafts and draws tokens, for each sequence.
        processors: Applied to the target's logits before the rule.
    """

    def __init__(self, make_rule: Callable[[], AcceptanceRule], processors: Processors) -> None:
        self._make_rule = make_rule
        self._rule = make_rule()
        self._processors = processors
        self._history = mx.zeros((0,), dtype=mx.uint32)
        self._position = 0
        self._stop_tokens: Collection[int] = ()

    def __repr__(self) -> str:
        return repr(self._rule)

    @property
    def supports_lookahead(self) -> bool:
        return self._processors.is_stateless

    def begin(self, history: Sequence[int], position: int, stop_tokens: Collection[int], /) -> None:
        self._rule = self._make_rule()
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
        """Verify draft by draft: processors see accepted prefixes only. Waits for each row."""
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
                # The sequence ends here. No processor sees the bonus token: any id and row will do.
                emitted.append(one.tokens)
                rows.append(rows[-1])
                break
        accepted = mx.array(len(emitted) - 1, dtype=mx.int32)
        processed = mx.concatenate(rows)
        # Log-probabilities may be read in another thread.
        mx.async_eval(processed)
        return Verification(accepted, mx.concatenate(emitted), processed)


@final
class CheckedSampler:
    """A caller's sampler, whose answers are checked for what would corrupt the output.

    The checks read types and shapes, which the host knows, and never wait for the device.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def __repr__(self) -> str:
        return type(self._sampler).__name__

    @property
    def supports_lookahead(self) -> bool:
        ahead: object = self._sampler.supports_lookahead
        if ahead is True or ahead is False:
            return ahead
        raise SpeculateError(f"{self}.supports_lookahead is {ahead!r}, not True or False")

    def begin(self, history: Sequence[int], position: int, stop_tokens: Collection[int], /) -> None:
        self._sampler.begin(history, position, stop_tokens)

    def choose(self, logits: mx.array, index: int, /) -> DraftToken:
        choice = self._sampler.choose(logits, index)
        self._check_type("choose() returned", choice, DraftToken)
        what = "choose() returned a DraftToken whose"
        self._check(f"{what} token", choice.token, (1,), mx.integer)
        if choice.logprobs is not None:
            what = f"{what} array of log-probabilities"
            self._check(what, choice.logprobs, logits.shape, mx.floating)
        # The proposer feeds the token to its model before anything can read it.
        return DraftToken(clamped_ids(choice.token, logits.shape[-1]), choice.logprobs)

    def verify(self, last_token: mx.array, draft: Draft, logits: mx.array, /) -> Verification:
        verification = self._sampler.verify(last_token, draft, logits)
        self._check_type("verify() returned", verification, Verification)
        rows, vocabulary = logits.shape
        what = "verify() returned a Verification whose"
        self._check(f"{what} accepted", verification.accepted, (), mx.integer)
        self._check(f"{what} tokens", verification.tokens, (rows,), mx.integer)
        found = verification.logits
        if found is not logits:
            # Fewer rows are allowed: those after the first rejected draft are not read.
            shape: tuple[int, ...] = getattr(found, "shape", ())
            few = len(shape) == 2 and 0 < shape[0] < rows
            shape = (shape[0] if few else rows, vocabulary)
            self._check(f"{what} logits", found, shape, mx.floating)
        return verification

    def commit(self, tokens: mx.array, /) -> None:
        self._sampler.commit(tokens)

    def _check(
        self, what: str, value: mx.array, shape: tuple[int, ...], kind: mx.DtypeCategory
    ) -> None:
        self._check_type(f"{what} is", value, mx.array)
        if value.shape != shape or not mx.issubdtype(value.dtype, kind):
            dtype = str(value.dtype).rpartition(".")[2]
            wanted = "integers" if kind is mx.integer else "floating-point numbers"
            raise SpeculateError(f"{self}.{what} is {value.shape} {dtype}, not {shape} {wanted}")

    def _check_type(self, what: str, value: object, wanted: type) -> None:
        if not isinstance(value, wanted):
            found, needed = _with_article(type(value)), _with_article(wanted)
            raise SpeculateError(f"{self}.{what} {found}, not {needed}")


def _with_article(kind: type) -> str:
    name = kind.__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


@final
class SamplerFactory:
    """Makes a sampler for each sequence of a decoder.

    Raises:
        OptionError: A processor may keep state and has no `fork()`, or there are processors
            beside the caller's sampler.
    """

    def __init__(
        self, sampling: Sampling | Sampler | SamplerCallable, processors: Sequence[Processor]
    ) -> None:
        self._sampling = CheckedSampler(sampling) if isinstance(sampling, Sampler) else sampling
        if isinstance(self._sampling, CheckedSampler) and processors:
            raise OptionError(
                f"logits_processors cannot be combined with the sampler {self._sampling}, which "
                "gets the model's own logits: apply them in its verify()"
            )
        own = penalties(sampling) if isinstance(sampling, Sampling) else []
        self._processors = Processors(own, processors)

    def begin_sequence(self) -> tuple[Sampler, int | None]:
        """A sampler for one sequence, and the seed that reproduces it, drawn if none is given.

        The seed is `None` for greedy decoding, a caller's sampler and an mlx-lm sampler.
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
        sampling = self._sampling
        if isinstance(sampling, CheckedSampler):
            return sampling
        return TokenSampler(lambda: _rule(sampling, seed), self._processors)


def _rule(sampling: Sampling | SamplerCallable, seed: int) -> AcceptanceRule:
    if not isinstance(sampling, Sampling):
        return CallablePicker(sampling)
    if sampling.temperature == 0:
        return Greedy()
    return acceptance_rule(Distribution(sampling, seed), sampling.mode)
