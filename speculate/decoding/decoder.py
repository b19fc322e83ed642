"""Decodes texts with one model, one strategy and one way of choosing tokens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Final, cast, final

import attrs
import mlx.core as mx

from speculate.decoding.block import Token
from speculate.decoding.config import (
    Setup,
    check_list,
    check_model,
    check_processors,
    check_sampling,
    check_strategy,
    check_stream,
    checked_count,
    checked_prompt,
    checked_quantization,
)
from speculate.decoding.proposers import Drafting
from speculate.decoding.session import KnownText, Session
from speculate.decoding.stats import Stats
from speculate.errors import DecoderBusyError
from speculate.proposers.mtp_chain import MTPChain
from speculate.proposers.prompt_lookup import PromptLookup
from speculate.protocols import Observer, Proposer, Rollbackable, SpeculativeModel, Strategy
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
"""Length from which on `kv_bits` quantises, as in mlx-lm."""


def default_strategy(model: SpeculativeModel, *proposers: Proposer) -> Strategy:
    """What decodes where nobody says how: whoever there is may draft, as much as pays.

    Args:
        model: The target. Its own head drafts, where it has one, and so does a lookup.
        proposers: Who else may draft.
    """
    heads = [] if model.head is None else [MTPChain()]
    return Adaptive(*proposers, *heads, PromptLookup())


@final
class Decoder:
    """Decodes token by token, with drafts that never change the text.

    Greedy: the tokens are those of plain decoding with the same model. With a temperature:
    the same seed gives the same tokens whoever drafts (mode "coupled"), or the same law
    (modes "rejection" and "block").

    Args:
        model: The target, from `speculate.load` or `speculate.adapt`.
        strategy: Who drafts, and how much. By default what pays, round by round: the model's
            own head where it has one, a lookup, or nobody. Give each decoder proposers of its
            own: one that serves two in turn may draft behind the wrong text, which costs
            acceptance.
        sampling: How tokens are chosen: options, or a sampler of mlx-lm. Greedy by default.
        logits_processors: Called as in mlx-lm, `(tokens, logits) -> logits`, with the whole
            text so far and once for each emitted token. Objects need a `fork` method
            (`ForkableProcessor`). Functions other than mlx-lm's own and the penalties of
            `Sampling` cost a synchronisation with the device for each token of a block.
        kv_bits: Quantise the rows of full attention to so many bits.
        kv_group_size: Numbers that share a scale in quantised rows.
        quantized_kv_start: Length of the text, in tokens, from which on rows are quantised.
        max_kv_size: Rows to keep a layer, the first four always, for models that do not
            choose their caches themselves. Only where no prompt cache is passed.
        prefill_step_size: Tokens of one prefill chunk.
        prompt_progress_callback: Called with tokens done and in all, during prefill.
        observer: Called with every round.
        stream: Where to compute; by default the current stream.

    Raises:
        OptionError: An option cannot be used.
        SpeculateError: A proposer cannot draft for this model.
    """

    def __init__(
        self,
        model: SpeculativeModel,
        strategy: Strategy | None = None,
        sampling: Sampling | SamplerCallable | None = None,
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
        kv = checked_quantization(kv_bits, kv_group_size, quantized_kv_start)
        chosen = Sampling() if sampling is None else sampling
        self._samplers = SamplerFactory(chosen, logits_processors)
        self._setup = Setup(
            model=model,
            strategy=strategy,
            drafting=Drafting(strategy, model),
            sampler=self._samplers.sampler(0),
            observer=validated_function("observer", observer),
            progress=validated_function("prompt_progress_callback", prompt_progress_callback),
            prefill_step_size=validated_integer("prefill_step_size", prefill_step_size, 1),
            max_kv_size=validated_optional_integer("max_kv_size", max_kv_size, 1),
            kv=kv,
        )
        self._stream = stream
        self._stepping = False
        self._stats = Stats()
        self._texts = KnownText()
        self._session: Session | None = None
        self._pending: int | None = None
        for proposer in strategy.proposers:
            proposer.attach(model)

    @property
    def stats(self) -> Stats:
        """Counters of the newest call of `generate`."""
        return self._stats

    @property
    def pending(self) -> int | None:
        """The token that was emitted and is in no cache; `None` where all are.

        Not `None` after a run only if the target's own forward failed.
        """
        return self._pending if self._session is None else self._session.pending

    def generate(
        self,
        prompt: Sequence[int] | mx.array,
        max_tokens: int = 256,
        prompt_cache: list[object] | list[Rollbackable] | None = None,
        stop_tokens: Collection[int] = (),
        *,
        history: Sequence[int] = (),
    ) -> Generator[Token, None, None]:
        """Decode a text.

        Args:
            prompt: Token ids, `(T,)`. On a later turn over the same cache only the new ones.
            max_tokens: Tokens to emit; -1 for no limit, 0 to take in the prompt only.
            prompt_cache: The target's list of caches, of mlx-lm's types or from
                `model.make_cache()`. While the generator runs it is on loan; afterwards the
                same list holds mlx-lm's types with prompt and every emitted token.
            stop_tokens: Ids that end the text, besides the model's own end-of-text ids.
            history: Ids of earlier turns, for logits processors, and for lookups and draft models
                that were not there: after a cache that was loaded they draft as after their own.
                A head cannot: it needs hidden states, which caches do not hold.

        Returns:
            Token by token; the stop token, if there is one, comes last. Closing it ends the
            text there, and hands the cache back.

        Raises:
            PromptError: The prompt is empty, or has ids that the model has not.
            OptionError: An option cannot be used, or does not fit the model.
            DecoderBusyError: Another text of this decoder is not finished.
        """
        ids = checked_prompt(prompt, size := self._setup.model.vocab_size)
        count = checked_count(max_tokens)
        check_list(prompt_cache)
        stops = {*validated_ids("stop_tokens", stop_tokens, size), *self._setup.model.eos_token_ids}
        before = validated_ids("history", history, size)
        self._refuse_if_busy()
        limit = None if count == -1 else count
        if prompt_cache is None:
            prompt_cache = list(self._setup.model.make_cache(self._setup.max_kv_size))
        # Its type is what is in it when the generator has ended: mlx-lm's caches.
        cache = cast("list[object]", prompt_cache)
        return self._generate(ids, limit, cache, frozenset(stops), before)

    def settle(self) -> None:
        """In the middle of a run: bring the prompt cache to prompt and emitted tokens.

        The caller's list can then be read, copied or saved. The next token goes on from
        there and takes the list on loan again, which must be as it was by then. Tokens that
        were verified and not emitted yet are kept, and not drawn again.
        """
        if self._session is not None:
            with self._step():
                self._session.settle()

    def _generate(
        self,
        prompt: list[int],
        max_tokens: int | None,
        prompt_cache: list[object],
        stop_tokens: frozenset[int],
        history: list[int],
    ) -> Generator[Token, None, None]:
        self._refuse_if_busy()
        setup = self._begin_text(len(prompt))
        session = Session(setup, prompt_cache, self._texts)
        given: Token | None = None
        quiet = True
        try:
            try:
                self._session, self._pending, self._stepping = session, None, False
                with self._step():
                    session.start(prompt, history, max_tokens, stop_tokens, self._stats)
                while not session.finished:
                    with self._step():
                        token = session.next()
                    # On one line: what an interrupt keeps from being yielded is no text.
                    yield (given := token)
                quiet = False
            except GeneratorExit:
                quiet = False
                raise
            finally:
                self._end(session, given, quiet=quiet)
        finally:
            # Does what is left to do, if an interrupt came in the middle of the first.
            self._finish(session, given)

    @contextmanager
    def _step(self) -> Iterator[None]:
        """Compute where the caller wants it, and let no callback step in between."""
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

    def _begin_text(self, prompt_tokens: int) -> Setup:
        """The parts for one text: counters from zero, and a sampler with a seed."""
        sampler, seed = self._samplers.begin_sequence()
        self._stats = Stats(prompt_tokens=prompt_tokens, seed=seed)
        setup = self._setup
        drafting = Drafting(setup.strategy, setup.model)
        return attrs.evolve(setup, sampler=sampler, drafting=drafting)

    def _end(self, session: Session, given: Token | None, *, quiet: bool) -> None:
        """Hand the caches back. A run that failed keeps its own exception: `quiet`."""
        try:
            with self._step():
                session.withdraw(given)
                session.end()
        except Exception:
            if not quiet:
                raise
        finally:
            if session.over:
                self._forget(session)

    def _finish(self, session: Session, given: Token | None) -> None:
        """Do what `_end` was kept from doing, and be ready for another text."""
        try:
            if not session.over:
                with self._step():
                    session.withdraw(given)
                    session.finish()
        finally:
            self._forget(session)

    def _forget(self, session: Session) -> None:
        # Nothing of the text stays with the decoder: its caches may be gigabytes.
        self._pending, self._session = session.pending, None

    def _refuse_if_busy(self) -> None:
        if self._session is not None:
            raise DecoderBusyError(
                "this decoder is in the middle of a text: finish or close() that generator, or "
                "make a second Decoder"
            )
