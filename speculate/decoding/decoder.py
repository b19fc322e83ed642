"""`Decoder`: checks the options, runs one generation at a time, and ends it cleanly."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Final, cast, final

import attrs
import mlx.core as mx

from speculate.decoding.block import Token
from speculate.decoding.cache_loan import CachedSequence
from speculate.decoding.config import (
    DecoderConfig,
    check_model,
    check_processors,
    check_sampling,
    check_strategy,
    check_stream,
    require_list,
    validated_count,
    validated_prompt,
    validated_quantization,
)
from speculate.decoding.generation import Generation
from speculate.decoding.proposer_pool import ProposerPool
from speculate.decoding.stats import Stats
from speculate.errors import DecoderBusyError
from speculate.proposers.mtp_chain import MTPChain
from speculate.proposers.prompt_lookup import PromptLookup
from speculate.protocols import (
    Observer,
    Proposer,
    Rollbackable,
    Sampler,
    SpeculativeModel,
    Strategy,
)
from speculate.sampling.acceptance import SamplerCallable
from speculate.sampling.options import Sampling
from speculate.sampling.sampler import SamplerFactory
from speculate.strategies.adaptive import Adaptive
from speculate.validation import (
    validated_function,
    validated_ids,
    validated_integer,
    validated_optional_integer,
)

QUANTIZED_KV_START: Final = 5000
"""Sequence length at which `kv_bits` begins to quantise, in tokens, as in mlx-lm."""


def default_strategy(model: SpeculativeModel, *proposers: Proposer) -> Strategy:
    """Return the default strategy: `Adaptive` over the given proposers, head and prompt lookup.

    Args:
        model: The target. Its own head drafts if it has one.
        proposers: Further proposers.
    """
    heads = [] if model.head is None else [MTPChain()]
    return Adaptive(*proposers, *heads, PromptLookup())


@final
class Decoder:
    """Decodes token by token with drafts that never change the output.

    Greedy decoding gives the tokens of plain decoding with the same model. Above temperature 0,
    mode "coupled" gives the same tokens for the same seed regardless of the proposer; modes
    "rejection" and "block" give the same distribution.

    Args:
        model: The target, from `speculate.load` or `speculate.adapt`.
        strategy: Plans the proposer and the depth of each round. By default `Adaptive` over
            the model's own head, if any, and prompt lookup, which drafts only where that is
            expected to save time. Do not share proposers between decoders: their position in
            the sequence would be wrong, which lowers the acceptance rate.
        sampling: Sampling options, a `Sampler` of your own, or an mlx-lm sampler. Greedy by
            default. The decoder calls the given `Sampler` itself and makes no copies: do not share
            it with a decoder that runs at the same time, since each would move its position.
        logits_processors: Called as in mlx-lm, `(tokens, logits) -> logits`, with the whole
            sequence so far, once per emitted token. Objects need a `fork` method
            (`ForkableProcessor`). Functions other than mlx-lm's own and the penalties of
            `Sampling` cost a synchronisation with the device for each token of a block. Not
            allowed beside a `Sampler`, which processes logits itself.
        kv_bits: Bits per value of quantised full-attention caches; `None` does not quantise.
        kv_group_size: Values that share a scale in quantised caches.
        quantized_kv_start: Sequence length, in tokens, at which quantisation begins.
        max_kv_size: Most rows per layer, always including the first four, for models that do
            not make their own caches. Ignored if a prompt cache is passed.
        prefill_step_size: Tokens per prefill chunk.
        prompt_progress_callback: Called during prefill with the number of tokens processed and
            their total.
        observer: Called with every round.
        stream: Stream to compute on; by default the current one.

    Raises:
        OptionError: An option cannot be used.
        SpeculateError: A proposer cannot draft for this model.
    """

    def __init__(
        self,
        model: SpeculativeModel,
        strategy: Strategy | None = None,
        sampling: Sampling | Sampler | SamplerCallable | None = None,
        logits_processors: Sequence[Callable[[mx.array, mx.array], mx.array]] = (),
        *,
        kv_bits: int | None = None,
        kv_group_size: int = 64,
        quantized_kv_start: int = QUANTIZED_KV_START,
        max_kv_size: int | None = None,
        prefill_step_size: int = 2048,
        prompt_progress_callback: Callable[[int, int], None] | None = None,
        observer: Observer | None = None,
        stream: mx.Stream | mx.ThreadLocalStream | None = None,
    ) -> None:
        check_model(model)
        strategy = default_strategy(model) if strategy is None else strategy
        check_strategy(strategy)
        check_sampling(sampling, model.vocab_size)
        check_processors(logits_processors)
        check_stream(stream)
        kv = validated_quantization(kv_bits, kv_group_size, quantized_kv_start)
        chosen = Sampling() if sampling is None else sampling
        self._samplers = SamplerFactory(chosen, logits_processors)
        self._config = DecoderConfig(
            model=model,
            strategy=strategy,
            proposers=ProposerPool(strategy, model),
            sampler=self._samplers.sampler(0),
            own_sampler=not isinstance(chosen, Sampling),
            observer=validated_function("observer", observer),
            progress=validated_function("prompt_progress_callback", prompt_progress_callback),
            prefill_step_size=validated_integer("prefill_step_size", prefill_step_size, 1),
            max_kv_size=validated_optional_integer("max_kv_size", max_kv_size, 1),
            kv=kv,
        )
        self._sampling = chosen
        self._stream = stream
        self._stepping = False
        self._stats = Stats()
        self._cached = CachedSequence()
        self._generation: Generation | None = None
        self._pending: int | None = None
        for proposer in strategy.proposers:
            proposer.attach(model)

    def __repr__(self) -> str:
        state = "idle" if self._generation is None else "running"
        model, strategy = type(self._config.model).__name__, self._config.strategy
        return f"Decoder({model}, strategy={strategy!r}, sampling={self._sampling!r}, {state})"

    @property
    def stats(self) -> Stats:
        """Counters of the last call of `generate`."""
        return self._stats

    @property
    def pending(self) -> int | None:
        """The emitted token that is in no cache; `None` if there is none.

        After a run it is not `None` only if the target's forward failed.
        """
        return self._pending if self._generation is None else self._generation.pending

    def generate(
        self,
        prompt: Sequence[int] | mx.array,
        max_tokens: int = 256,
        prompt_cache: list[object] | list[Rollbackable] | None = None,
        stop_tokens: Collection[int] = (),
        *,
        history: Sequence[int] = (),
    ) -> Generator[Token, None, None]:
        """Generate tokens after a prompt.

        Args:
            prompt: Token ids `(T,)`. On later turns over a cache, only the new ones.
            max_tokens: Most tokens to emit; -1 for no limit, 0 to prefill the prompt only.
            prompt_cache: The target's list of caches, of mlx-lm's types or from
                `model.make_cache()`. The generator borrows it; afterwards the same list holds
                mlx-lm's types with the prompt and every emitted token.
            stop_tokens: Ids that stop generation, in addition to the model's end-of-text ids.
            history: Ids of earlier turns, for logits processors, and for prompt lookups and
                draft models that have not seen them, such as after loading a cache. A head
                cannot use them, because it needs hidden states, which caches do not hold.

        Returns:
            A generator of tokens, including a final stop token. Closing it ends generation and
            returns the cache.

        Raises:
            PromptError: The prompt is empty or has ids outside the model's vocabulary.
            OptionError: An option cannot be used or does not fit the model.
            DecoderBusyError: Another generator of this decoder is not finished.
        """
        ids = validated_prompt(prompt, size := self._config.model.vocab_size)
        count = validated_count(max_tokens)
        require_list(prompt_cache)
        stops = {
            *validated_ids("stop_tokens", stop_tokens, size),
            *self._config.model.eos_token_ids,
        }
        before = validated_ids("history", history, size)
        self._refuse_if_busy()
        limit = None if count == -1 else count
        if prompt_cache is None:
            prompt_cache = list(self._config.model.make_cache(self._config.max_kv_size))
        # Typed by its content after the run, which is mlx-lm's caches.
        cache = cast("list[object]", prompt_cache)
        return self._generate(ids, limit, cache, frozenset(stops), before)

    def settle(self) -> None:
        """During a run, bring the prompt cache to the prompt and the tokens emitted so far.

        The caller's list can then be read, copied or saved. The next token borrows the list
        again, which must be unchanged. Tokens that were verified but not emitted yet are kept
        and not sampled again.
        """
        if self._generation is not None:
            with self._step():
                self._generation.settle()

    def _generate(
        self,
        prompt: list[int],
        max_tokens: int | None,
        prompt_cache: list[object],
        stop_tokens: frozenset[int],
        history: list[int],
    ) -> Generator[Token, None, None]:
        self._refuse_if_busy()
        config = self._begin_text(len(prompt))
        run = Generation(config, prompt_cache, self._cached, max_tokens, stop_tokens, self._stats)
        tokens = run.tokens()
        given: Token | None = None
        quiet = True
        try:
            try:
                self._generation, self._pending, self._stepping = run, None, False
                with self._step():
                    run.start(prompt, history)
                while not run.finished:
                    with self._step():
                        token = next(tokens)
                    # One line, so that a token counts as received if and only if it is yielded.
                    yield (given := token)
                quiet = False
            except GeneratorExit:
                quiet = False
                raise
            finally:
                self._end(run, given, quiet=quiet)
        finally:
            # Finishes the work if an interrupt cut `_end` short.
            self._finish(run, given)

    @contextmanager
    def _step(self) -> Iterator[None]:
        """Compute on the caller's stream, and refuse calls from inside a step."""
        if self._stepping:
            raise DecoderBusyError(
                "the decoder is in the middle of a step: call settle() between two tokens, and "
                "not from an observer, a processor, a proposer or a progress callback"
            )
        try:
            try:
                self._stepping = True
                with nullcontext() if self._stream is None else mx.stream(self._stream):
                    yield
            finally:
                self._stepping = False
        finally:
            self._stepping = False

    def _begin_text(self, prompt_tokens: int) -> DecoderConfig:
        """Prepare the parts of one generation: zeroed counters and a seeded sampler."""
        sampler, seed = self._samplers.begin_sequence()
        self._stats = Stats(prompt_tokens=prompt_tokens, seed=seed)
        config = self._config
        proposers = ProposerPool(config.strategy, config.model)
        return attrs.evolve(config, sampler=sampler, proposers=proposers)

    def _end(self, run: Generation, given: Token | None, *, quiet: bool) -> None:
        """End a run and return the caches; `quiet` ignores errors, so that the run's is raised."""
        try:
            with self._step():
                run.withdraw(given)
                run.end()
        except Exception:
            if not quiet:
                raise
        finally:
            if run.returned:
                self._forget(run)

    def _finish(self, run: Generation, given: Token | None) -> None:
        """Complete an interrupted `_end`, and get ready for the next run."""
        try:
            if not run.returned:
                with self._step():
                    run.withdraw(given)
                    run.ensure_ended()
        finally:
            self._forget(run)

    def _forget(self, run: Generation) -> None:
        # Drop all references: the caches may take gigabytes.
        self._pending, self._generation = run.pending, None

    def _refuse_if_busy(self) -> None:
        if self._generation is not None:
            raise DecoderBusyError(
                "this decoder has another running generator: finish or close() it, or make a "
                "second Decoder"
            )
