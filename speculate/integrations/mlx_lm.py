"""mlx-lm's steps leave it to their caller to end a text."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import cast, final

import attrs
import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.generate import DEFAULT_QUANTIZED_KV_START, generation_stream
from mlx_lm.sample_utils import greedy_sampler

from speculate.backends.adopt import refuse_shared
from speculate.backends.group import group_of
from speculate.decoding.config import check_list, check_model
from speculate.decoding.decoder import Decoder
from speculate.decoding.loan import Loan, OnLoan
from speculate.errors import OptionError
from speculate.loading import adapt
from speculate.proposers.draft_model import DraftModel
from speculate.proposers.mtp_chain import MTPChain
from speculate.protocols import Forward, MTPHead, Rollbackable, SpeculativeModel, StockModel
from speculate.strategies.fixed import MAX_DEPTH, Fixed
from speculate.validation import validated_integer


@final
class Endless:
    """A model that knows no end-of-text ids.

    Args:
        model: mlx-lm's, or an adapted one.
        name: The option that it was given as.

    Raises:
        OptionError: It is neither.
    """

    def __init__(self, model: StockModel | SpeculativeModel, name: str) -> None:
        stock = isinstance(model, Module)
        adapted = adapt(cast(StockModel, model)) if stock else model
        check_model(adapted, name)
        self._model = cast(SpeculativeModel, adapted)

    @property
    def vocab_size(self) -> int:
        return self._model.vocab_size

    @property
    def eos_token_ids(self) -> frozenset[int]:
        return frozenset()

    @property
    def head(self) -> MTPHead | None:
        return self._model.head

    @property
    def vocabulary(self) -> Mapping[str, int] | None:
        return self._model.vocabulary

    def make_cache(
        self, max_kv_size: int | None = None, *, position: int = 0
    ) -> list[Rollbackable]:
        return self._model.make_cache(max_kv_size, position=position)

    def adopt(self, cache: Sequence[object], /) -> list[Rollbackable]:
        return self._model.adopt(cache)

    def forward(self, tokens: mx.array, cache: Sequence[object], /) -> Forward:
        return self._model.forward(tokens, cache)


@final
@attrs.frozen
class Halves:
    """A caller's list, split.

    Attributes:
        both: The caller's list, where it holds a part for the draft model.
        target: The target's part. Where there is no other, the caller's list itself.
        draft: The draft model's part.
    """

    both: list[object] | None = None
    target: list[object] | None = None
    draft: list[object] | None = None


def split(
    prompt_cache: list[object] | None,
    target: SpeculativeModel,
    draft: SpeculativeModel | None = None,
) -> Halves:
    """Split a list by the number of caches that the models make.

    Raises:
        OptionError: It has the length of neither part nor both, or one cache twice.
    """
    check_list(prompt_cache)
    if prompt_cache is None:
        return Halves()
    refuse_shared(prompt_cache)
    of_target = len(target.make_cache())
    of_draft = 0 if draft is None else len(draft.make_cache())
    if len(prompt_cache) == of_target:
        return Halves(target=prompt_cache)
    if of_draft and len(prompt_cache) == of_target + of_draft:
        return Halves(prompt_cache, prompt_cache[:of_target], prompt_cache[of_target:])
    wanted = f"{of_target} for the target"
    wanted += f", or these and {of_draft} for the draft model" if of_draft else ""
    raise OptionError(f"prompt_cache has {len(prompt_cache)} caches, it needs {wanted}")


@contextmanager
def lent(
    draft: SpeculativeModel, halves: Halves, stream: mx.Stream | mx.ThreadLocalStream
) -> Iterator[list[Rollbackable] | None]:
    """The draft model's part, on loan while the body runs; then the whole list is refilled.

    Args:
        draft: The draft model.
        halves: The caller's list. Without a part for the draft model nothing is done.
        stream: Where to compute what is left to do at the end.

    Yields:
        What the draft model is to work on; `None` for caches of its own.
    """
    if halves.both is None or halves.target is None or halves.draft is None:
        yield None
        return
    loan, both = Loan(draft, halves.draft), halves.both

    def give_back() -> None:
        with mx.stream(stream):
            group = group_of(loan.caches)
            if group is not None:
                group.rewind()
                group.stop()
            loan.give_back()
        both[:] = [*(halves.target or ()), *loan.list]

    try:
        try:
            loan.take()
            both[:] = [OnLoan(layer) for layer in range(len(both))]
            yield loan.caches
        finally:
            give_back()
    finally:
        # Does what is left to do, if an interrupt came in the middle of the first.
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
