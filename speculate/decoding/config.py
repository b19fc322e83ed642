"""The validated parts and options of a decoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, final

import attrs
import mlx.core as mx
from typing_extensions import get_protocol_members

from speculate._mx import to_ints
from speculate.decoding.proposer_pool import ProposerPool
from speculate.errors import OptionError, PromptError, SpeculateError
from speculate.protocols import (
    Observer,
    Plan,
    Sampler,
    SpeculativeModel,
    Strategy,
    SupportsTaps,
)
from speculate.sampling.options import Sampling
from speculate.validation import plain_ids, refuse, validated_integer

KV_BITS: Final = (2, 3, 4, 5, 6, 8)
"""Supported widths of quantised cache values, in bits."""

KV_GROUP_SIZES: Final = (32, 64, 128)
"""Supported numbers of cache values that share a scale."""


@final
@attrs.frozen
class KVQuantization:
    """Quantisation of full-attention caches once a sequence is long, as in mlx-lm.

    Attributes:
        bits: Bits per value.
        group_size: Values that share a scale.
        start: Sequence length at which quantisation begins, in tokens.
    """

    bits: int
    group_size: int
    start: int


def validated_quantization(
    kv_bits: object, kv_group_size: object, quantized_kv_start: object
) -> KVQuantization | None:
    """Validate the options of cache quantisation; `None` if it is off."""
    group_size = validated_integer("kv_group_size", kv_group_size, among=KV_GROUP_SIZES)
    start = validated_integer("quantized_kv_start", quantized_kv_start, 0)
    if kv_bits is None:
        return None
    return KVQuantization(validated_integer("kv_bits", kv_bits, among=KV_BITS), group_size, start)


@final
@attrs.frozen(kw_only=True)
class DecoderConfig:
    """A decoder's parts and options.

    Attributes:
        model: The target.
        strategy: Plans the proposer and the depth of each round.
        proposers: The strategy's proposers, kept at the same position in the sequence.
        sampler: Samples tokens and verifies drafts.
        own_sampler: Whether the caller's code chooses the tokens, perhaps outside the vocabulary.
        observer: Called with every round.
        progress: Called during prefill with the tokens processed and their total.
        prefill_step_size: Tokens per prefill chunk.
        max_kv_size: Most rows per layer, for models that do not make their own caches.
        kv: Cache quantisation; `None` if it is off.
    """

    model: SpeculativeModel
    strategy: Strategy
    proposers: ProposerPool
    sampler: Sampler
    own_sampler: bool = False
    observer: Observer | None = None
    progress: Callable[[int, int], None] | None = None
    prefill_step_size: int = 2048
    max_kv_size: int | None = None
    kv: KVQuantization | None = None

    def report(self, done: int, total: int) -> None:
        """Call the progress callback, if there is one."""
        if self.progress is not None:
            self.progress(done, total)


def check_model(model: object, name: str = "model") -> None:
    """Raise `OptionError` for an mlx-lm model without an adapter, or anything but a model."""
    kind = f"{type(model).__module__}.{type(model).__name__}"
    # MLX modules are dictionaries of their parts.
    if isinstance(model, dict):
        raise OptionError(
            f"{name}: {kind} cannot roll back tokens: wrap an mlx-lm model with "
            "speculate.adapt(model)"
        )
    if not isinstance(model, SpeculativeModel):
        raise OptionError(
            f"{name} must be a SpeculativeModel, got {kind}: pass the model that "
            "speculate.load(path) returns, or speculate.adapt(model) for an mlx-lm model"
        )


def missing_members(part: object, protocol: type) -> list[str]:
    """Return the names of a protocol's members that a part lacks, for errors."""
    return sorted(get_protocol_members(protocol) - set(dir(part)))


def check_strategy(strategy: object) -> None:
    """Raise `OptionError` for anything but a strategy whose proposers have names of their own."""
    if isinstance(strategy, type) or not isinstance(strategy, Strategy):
        missing = missing_members(strategy, Strategy)
        lacks = f", it lacks {', '.join(missing)}" if missing else ""
        raise OptionError(
            f"strategy must be an object such as Fixed(proposer, depth=3), got {strategy!r}: "
            f"{type(strategy).__name__} is not a strategy{lacks}"
        )
    names = [proposer.name for proposer in strategy.proposers]
    if len(set(names)) < len(names):
        raise OptionError(f"two proposers of one strategy share a name: {', '.join(names)}")
    for proposer in strategy.proposers:
        if isinstance(proposer, SupportsTaps) and proposer.taps:
            raise OptionError(
                f"proposer '{proposer.name}' reads the target's outputs after layers "
                f"{list(proposer.taps)}, which no model returns yet"
            )


def validated_plan(plan: object) -> Plan:
    """Return what a strategy planned, or raise `SpeculateError` if it is not a plan."""
    if not isinstance(plan, Plan):
        kind = type(plan).__name__
        raise SpeculateError(f"the strategy's plan() returned a {kind}, not a Plan")
    depth: object = plan.depth
    if not isinstance(depth, int) or depth < 0:
        raise SpeculateError(f"the strategy planned {depth!r} drafts")
    return plan


def validated_prompt(prompt: Sequence[int] | mx.array, vocab_size: int) -> list[int]:
    """Validate a prompt and copy it to the host.

    Raises:
        PromptError: It is empty, has ids outside the vocabulary, or is not a row of ids.
    """
    if isinstance(prompt, mx.array) and (
        prompt.ndim != 1 or not mx.issubdtype(prompt.dtype, mx.integer)
    ):
        raise PromptError(
            f"an array prompt must be (T,) integers, got {prompt.shape} {prompt.dtype}"
        )
    try:
        ids = to_ints(prompt) if isinstance(prompt, mx.array) else plain_ids(prompt)
    except TypeError as error:
        raise PromptError(
            f"a prompt must be a sequence of token ids: {error}. Encode text first"
        ) from error
    if not ids:
        raise PromptError("the prompt is empty: give at least one token id")
    wrong = next((id_ for id_ in ids if not 0 <= id_ < vocab_size), None)
    if wrong is not None:
        raise PromptError(
            f"prompt id {wrong} is outside the model's vocabulary of {vocab_size}: the tokenizer "
            "probably belongs to another model"
        )
    return ids


def validated_count(max_tokens: object) -> int:
    """Validate the most tokens to emit; -1 means no limit."""
    return validated_integer("max_tokens", max_tokens, -1, note="-1: no limit")


def check_sampling(sampling: object, vocab_size: int) -> None:
    """Refuse invalid sampling options.

    Raises:
        OptionError: It is not a `Sampling`, a `Sampler` or a callable, or has ids outside the
            vocabulary.
    """
    if isinstance(sampling, Sampling):
        sampling.check_ids(vocab_size)
    elif isinstance(sampling, type):
        raise OptionError(f"sampling: {sampling.__name__} is a class: pass an instance of it")
    elif not (sampling is None or isinstance(sampling, Sampler) or callable(sampling)):
        missing = missing_members(sampling, Sampler)
        if len(missing) < len(get_protocol_members(Sampler)):
            kind = type(sampling).__name__
            raise OptionError(f"sampling: {kind} is not a Sampler: it lacks {', '.join(missing)}")
        refuse("sampling", "a Sampling, such as Sampling(temperature=0.7), or a sampler", sampling)


def check_processors(processors: object) -> None:
    """Raise `OptionError` for anything but a sequence of functions."""
    if not isinstance(processors, Sequence) or not all(map(callable, processors)):
        refuse(
            "logits_processors", "a sequence of functions (tokens, logits) -> logits", processors
        )


def check_stream(stream: object) -> None:
    """Raise `OptionError` for anything but an MLX stream or `None`."""
    if not isinstance(stream, mx.Stream | mx.ThreadLocalStream | None):
        refuse("stream", "an MLX stream, such as mx.new_stream(mx.gpu), or None", stream)


def require_list(prompt_cache: object) -> None:
    """Raise `OptionError` for a prompt cache that is not a list: it could not be refilled."""
    if prompt_cache is not None and not isinstance(prompt_cache, list):
        kind = type(prompt_cache).__name__
        raise OptionError(f"prompt_cache must be a list, because it is refilled; got a {kind}")
