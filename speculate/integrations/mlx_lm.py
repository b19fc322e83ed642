"""mlx-lm's own generation steps, exact on recurrent and sliding-window models too.

For a loop that calls `mlx_lm.generate.speculative_generate_step`: import the function of
that name from here instead. `mtp_generate_step` does the same with the model's own head.

As in mlx-lm, an end-of-text token is one like any other: the caller decides when to stop.
A prompt cache is on loan until the generator ends or is closed. Then the same list holds
caches of mlx-lm, and every part of it has taken in the prompt and all tokens generated.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing

import mlx.core as mx
from mlx_lm.generate import DEFAULT_QUANTIZED_KV_START, generation_stream
from mlx_lm.sample_utils import greedy_sampler

from speculate.decoding.decoder import Decoder
from speculate.integrations.endless import Endless
from speculate.integrations.halves import lent, split
from speculate.proposers.draft_model import DraftModel
from speculate.proposers.mtp_chain import MTPChain
from speculate.protocols import SpeculativeModel, StockModel
from speculate.strategies.fixed import MAX_DEPTH, Fixed
from speculate.validation import validated_integer

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
    """Generate tokens with a draft model; see mlx-lm's function of this name.

    Args:
        prompt: Token ids, `(T,)`.
        model: The target: mlx-lm's model, or an adapted one.
        draft_model: A smaller model of the same tokenizer, likewise.
        stream: Where to compute.
        num_draft_tokens: Drafts a round, 0 to 48.
        max_tokens: Tokens to generate; -1 for no limit.
        sampler: Called once for each token of a block, in order. Drafts stand by equality.
        logits_processors: Called with the whole text before each token.
        prompt_cache: The target's caches, or the target's and then the draft's in one list.
        prefill_step_size: Tokens of one prefill chunk.
        kv_bits: Quantise the target's caches to so many bits. The draft's stay as they are.
        kv_group_size: Numbers that share a scale.
        quantized_kv_start: Length of the text from which on caches are quantised.
        max_kv_size: As in `generate_step`: rows to keep a layer, where no prompt cache is
            given and the target does not choose its caches itself. The draft's are not bounded.
        prompt_progress_callback: As in `generate_step`: called with prompt tokens done and in
            all.

    Yields:
        A token, its log-probabilities in float32, and whether it is an accepted draft.
    """
    depth = _depth(num_draft_tokens)
    target, draft = Endless(model, "model"), Endless(draft_model, "draft_model")
    halves = split(prompt_cache, target, draft)
    with lent(draft, halves, stream) as draft_caches:
        decoder = Decoder(
            target,
            Fixed(DraftModel(draft, cache=draft_caches), depth),
            _chooser(sampler),
            logits_processors or (),
            kv_bits=kv_bits,
            kv_group_size=kv_group_size,
            quantized_kv_start=quantized_kv_start,
            prefill_step_size=prefill_step_size,
            max_kv_size=max_kv_size,
            prompt_progress_callback=prompt_progress_callback,
            stream=stream,
        )
        yield from _steps(decoder, prompt, max_tokens, halves.target, stream)


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

    Args:
        prompt: Token ids, `(T,)`.
        model: An adapted model with a head.
        stream: Where to compute.
        num_draft_tokens: Drafts a round, 0 to 48.
        max_tokens: Tokens to generate; -1 for no limit.
        sampler: Called once for each token of a block, in order. Drafts stand by equality.
        logits_processors: Called with the whole text before each token.
        prompt_cache: The model's caches.
        prefill_step_size: Tokens of one prefill chunk.
        kv_bits: Quantise caches to so many bits.
        kv_group_size: Numbers that share a scale.
        quantized_kv_start: Length of the text from which on caches are quantised.
        max_kv_size: As in `generate_step`: rows to keep a layer, where no prompt cache is
            given and the model does not choose its caches itself.
        prompt_progress_callback: As in `generate_step`: called with prompt tokens done and in
            all.

    Yields:
        As `speculative_generate_step`.

    Raises:
        HeadNotFoundError: The model has no head.
    """
    depth = _depth(num_draft_tokens)
    target = Endless(model, "model")
    decoder = Decoder(
        target,
        Fixed(MTPChain(), depth),
        _chooser(sampler),
        logits_processors or (),
        kv_bits=kv_bits,
        kv_group_size=kv_group_size,
        quantized_kv_start=quantized_kv_start,
        prefill_step_size=prefill_step_size,
        max_kv_size=max_kv_size,
        prompt_progress_callback=prompt_progress_callback,
        stream=stream,
    )
    caches = split(prompt_cache, target).target
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


def _depth(num_draft_tokens: object) -> int:
    """Drafts a round, by mlx-lm's name for it."""
    return validated_integer("num_draft_tokens", num_draft_tokens, 0, MAX_DEPTH)


def _chooser(sampler: Sampler | None) -> Sampler | None:
    """mlx-lm's greedy sampler draws nothing: without it the next step need not wait."""
    return None if sampler is greedy_sampler else sampler
