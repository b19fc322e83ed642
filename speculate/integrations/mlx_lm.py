"""mlx-lm's call signatures for speculative generation, implemented with `Decoder`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import cast, final

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.generate import DEFAULT_QUANTIZED_KV_START, generation_stream
from mlx_lm.sample_utils import greedy_sampler

from speculate.backends.adopt import refuse_shared
from speculate.backends.group import group_of
from speculate.decoding.cache_loan import LoanedLayer, PromptCacheLoan
from speculate.decoding.config import check_model, require_list
from speculate.decoding.decoder import Decoder
from speculate.errors import OptionError
from speculate.loading import adapt
from speculate.proposers.draft_model import DraftModel
from speculate.proposers.mtp_chain import MTPChain
from speculate.protocols import Forward, MTPHead, Rollbackable, SpeculativeModel, StockModel
from speculate.strategies.fixed import MAX_DEPTH, Fixed
from speculate.validation import validated_integer


@final
class IgnoreEOS:
    """A model, adapted if it was not, without end-of-text ids.

    mlx-lm's steps let their caller detect the end. Errors call the model `name`.
    """

    def __init__(self, model: StockModel | SpeculativeModel, name: str) -> None:
        adapted = adapt(cast(StockModel, model)) if isinstance(model, Module) else model
        check_model(adapted, name)
        self._model = model = cast(SpeculativeModel, adapted)
        self.vocab_size: int = model.vocab_size
        self.eos_token_ids: frozenset[int] = frozenset()
        self.head: MTPHead | None = model.head
        self.vocabulary: Mapping[str, int] | None = model.vocabulary

    def make_cache(
        self, max_kv_size: int | None = None, *, position: int = 0
    ) -> list[Rollbackable]:
        return self._model.make_cache(max_kv_size, position=position)

    def adopt(self, cache: Sequence[object], /) -> list[Rollbackable]:
        return self._model.adopt(cache)

    def forward(
        self, tokens: mx.array, cache: Sequence[object], /, *, taps: Sequence[int] = ()
    ) -> Forward:
        return self._model.forward(tokens, cache, taps=taps)


def split_prompt_cache(
    prompt_cache: list[object] | None,
    target: SpeculativeModel,
    draft: SpeculativeModel | None = None,
) -> tuple[list[object] | None, list[object] | None]:
    """Split a caller's list into the caches of the target and those of the draft model.

    The target's are the list itself if it has no others.

    Raises:
        OptionError: The list fits neither the target nor both models, or has a cache twice.
    """
    require_list(prompt_cache)
    if prompt_cache is None:
        return None, None
    of_target = len(target.make_cache())
    of_draft = 0 if draft is None else len(draft.make_cache())
    if len(prompt_cache) == of_target:
        return prompt_cache, None
    if of_draft and len(prompt_cache) == of_target + of_draft:
        refuse_shared(prompt_cache)
        return prompt_cache[:of_target], prompt_cache[of_target:]
    wanted = f"{of_target} for the target"
    wanted += f", or these and {of_draft} for the draft model" if of_draft else ""
    raise OptionError(f"prompt_cache has {len(prompt_cache)} caches, it needs {wanted}")


@contextmanager
def prompt_cache_loan(
    prompt_cache: list[object] | None,
    target: SpeculativeModel,
    draft: SpeculativeModel,
    stream: mx.Stream | mx.ThreadLocalStream,
) -> Iterator[tuple[list[object] | None, list[Rollbackable] | None]]:
    """Borrow the draft model's caches for the body, then refill the caller's whole list.

    Yields:
        The target's and the draft model's caches; `None` if the model should make its own.
    """
    own, lent = split_prompt_cache(prompt_cache, target, draft)
    if prompt_cache is None or own is None or lent is None:
        yield own, None
        return
    loan = PromptCacheLoan(draft, lent)

    def give_back() -> None:
        with mx.stream(stream):
            if (group := group_of(loan.caches)) is not None:
                group.rewind()
                group.stop()
            loan.give_back()
        prompt_cache[:] = [*own, *loan.list]

    try:
        try:
            loan.take()
            prompt_cache[:] = [LoanedLayer(layer) for layer in range(len(prompt_cache))]
            yield own, loan.caches
        finally:
            give_back()
    finally:
        # Finishes the work if an interrupt cut the first attempt short.
        give_back()


Sampler = Callable[[mx.array], mx.array]
LogitsProcessor = Callable[[mx.array, mx.array], mx.array]
Steps = Generator[tuple[int, mx.array, bool], None, None]


def speculative_generate_step(
    prompt: mx.array,
    model: StockModel | SpeculativeModel,
    draft_model: StockModel | SpeculativeModel,
    stream: mx.Stream | mx.ThreadLocalStream = generation_stream,
    *,
    num_draft_tokens: int = 2,
    max_tokens: int = 256,
    sampler: Sampler | None = None,
    logits_processors: Sequence[LogitsProcessor] | None = None,
    prompt_cache: list[object] | None = None,
    prefill_step_size: int = 512,
    kv_bits: int | None = None,
    kv_group_size: int = 64,
    quantized_kv_start: int = DEFAULT_QUANTIZED_KV_START,
    max_kv_size: int | None = None,
    prompt_progress_callback: Callable[[int, int], None] | None = None,
) -> Steps:
    """Generate tokens with a draft model, like mlx-lm's function of the same name.

    Args:
        prompt: Token ids, `(T,)`.
        model: The target: an mlx-lm model or an adapted one.
        draft_model: A smaller mlx-lm or adapted model with the same tokenizer.
        stream: Stream to compute on.
        num_draft_tokens: Drafted tokens per round, 0 to 48.
        max_tokens: Most tokens to generate; -1 for no limit.
        sampler: Called once per emitted token, in order; a draft that equals it is accepted.
        logits_processors: Called with the whole sequence before each token.
        prompt_cache: The target's caches, or the target's and then the draft's in one list.
        prefill_step_size: Tokens per prefill chunk.
        kv_bits: Bits per value of the target's quantised caches. The draft's are not quantised.
        kv_group_size: Values that share a scale.
        quantized_kv_start: Sequence length, in tokens, at which quantisation begins.
        max_kv_size: As in `generate_step`. The draft's caches are not bounded.
        prompt_progress_callback: As in `generate_step`.

    Yields:
        A token id, its float32 log-probabilities `(vocabulary,)`, and whether it was drafted.
    """
    depth = validated_integer("num_draft_tokens", num_draft_tokens, 0, MAX_DEPTH)
    target, draft = IgnoreEOS(model, "model"), IgnoreEOS(draft_model, "draft_model")
    with prompt_cache_loan(prompt_cache, target, draft, stream) as (caches, draft_caches):
        decoder = Decoder(
            target,
            Fixed(DraftModel(draft, cache=draft_caches), depth),
            _without_greedy(sampler),
            logits_processors or (),
            kv_bits=kv_bits,
            kv_group_size=kv_group_size,
            quantized_kv_start=quantized_kv_start,
            prefill_step_size=prefill_step_size,
            max_kv_size=max_kv_size,
            prompt_progress_callback=prompt_progress_callback,
            stream=stream,
        )
        yield from _steps(decoder, prompt, max_tokens, caches, stream)


def mtp_generate_step(
    prompt: mx.array,
    model: SpeculativeModel,
    stream: mx.Stream | mx.ThreadLocalStream = generation_stream,
    *,
    num_draft_tokens: int = 1,
    max_tokens: int = 256,
    sampler: Sampler | None = None,
    logits_processors: Sequence[LogitsProcessor] | None = None,
    prompt_cache: list[object] | None = None,
    prefill_step_size: int = 512,
    kv_bits: int | None = None,
    kv_group_size: int = 64,
    quantized_kv_start: int = DEFAULT_QUANTIZED_KV_START,
    max_kv_size: int | None = None,
    prompt_progress_callback: Callable[[int, int], None] | None = None,
) -> Steps:
    """Generate tokens with the model's own multi-token-prediction head.

    All arguments but `draft_model`, and what is yielded, are those of `speculative_generate_step`.

    Raises:
        HeadNotFoundError: The model has no head.
    """
    depth = validated_integer("num_draft_tokens", num_draft_tokens, 0, MAX_DEPTH)
    target = IgnoreEOS(model, "model")
    decoder = Decoder(
        target,
        Fixed(MTPChain(), depth),
        _without_greedy(sampler),
        logits_processors or (),
        kv_bits=kv_bits,
        kv_group_size=kv_group_size,
        quantized_kv_start=quantized_kv_start,
        prefill_step_size=prefill_step_size,
        max_kv_size=max_kv_size,
        prompt_progress_callback=prompt_progress_callback,
        stream=stream,
    )
    caches, _ = split_prompt_cache(prompt_cache, target)
    yield from _steps(decoder, prompt, max_tokens, caches, stream)


def _steps(
    decoder: Decoder,
    prompt: mx.array,
    max_tokens: int,
    caches: list[object] | None,
    stream: mx.Stream | mx.ThreadLocalStream,
) -> Steps:
    with closing(decoder.generate(prompt, max_tokens, caches)) as tokens:
        for token in tokens:
            with mx.stream(stream):
                logprobs = token.logprobs
            yield token.id, logprobs, token.from_draft


def _without_greedy(sampler: Sampler | None) -> Sampler | None:
    """Drop mlx-lm's greedy sampler: the decoder is greedy anyway, and faster without a callable."""
    return None if sampler is greedy_sampler else sampler
