"""The parts and options that a text is decoded with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, final

import attrs
import mlx.core as mx

from speculate._mx import to_ints
from speculate.decoding.proposers import Drafting
from speculate.errors import OptionError, PromptError
from speculate.protocols import Observer, Sampler, SpeculativeModel, Strategy
from speculate.sampling.options import Sampling
from speculate.validation import plain_ids, refuse, validated_integer

KV_BITS: Final = (2, 3, 4, 5, 6, 8)
KV_GROUP_SIZES: Final = (32, 64, 128)


@final
@attrs.frozen
class KVQuantization:
    """Quantise the rows of full attention once a text is long, as mlx-lm does.

    Attributes:
        bits: Bits a number.
        group_size: Numbers that share a scale.
        start: Length of the text from which on rows are quantised, in tokens.
    """

    bits: int
    group_size: int
    start: int


def checked_quantization(
    kv_bits: object, kv_group_size: object, quantized_kv_start: object
) -> KVQuantization | None:
    """What three options say of quantised rows; `None` where they say to quantise none.

    Raises:
        OptionError: One of them cannot be used.
    """
    group_size = validated_integer("kv_group_size", kv_group_size, among=KV_GROUP_SIZES)
    start = validated_integer("quantized_kv_start", quantized_kv_start, 0)
    if kv_bits is None:
        return None
    return KVQuantization(validated_integer("kv_bits", kv_bits, among=KV_BITS), group_size, start)


@final
@attrs.frozen(kw_only=True)
class Setup:
    """A decoder's parts and options.

    Attributes:
        model: The target.
        strategy: Who drafts, and how much.
        drafting: Those who may draft, in step with the text.
        sampler: Which tokens, and which drafts stand.
        observer: Hears every round.
        progress: Called with tokens done and in all, during prefill.
        prefill_step_size: Tokens of one prefill chunk.
        max_kv_size: Rows to keep a layer, for models that do not choose.
        kv: Whether and when to quantise rows.
    """

    model: SpeculativeModel
    strategy: Strategy
    drafting: Drafting
    sampler: Sampler
    observer: Observer | None = None
    progress: Callable[[int, int], None] | None = None
    prefill_step_size: int = 2048
    max_kv_size: int | None = None
    kv: KVQuantization | None = None

    def report(self, done: int, total: int) -> None:
        """Report prefill progress."""
        if self.progress is not None:
            self.progress(done, total)


def check_model(model: object, name: str = "model") -> None:
    """Refuse a model that nothing drives.

    Args:
        model: What was given.
        name: As which option.

    Raises:
        OptionError: It is one of mlx-lm's own, or no model at all.
    """
    kind = f"{type(model).__module__}.{type(model).__name__}"
    # These are modules of MLX, which are dictionaries of their parts.
    if isinstance(model, dict):
        raise OptionError(
            f"{name}: {kind} is no model that can take tokens back: wrap a model of mlx-lm, as "
            "speculate.adapt(model)"
        )
    if not isinstance(model, SpeculativeModel):
        raise OptionError(
            f"{name} must be one that can take tokens back, got {kind}: pass the first of the two "
            "that speculate.load(path) returns, or speculate.adapt(model) for a model of mlx-lm"
        )


def check_strategy(strategy: object) -> None:
    """Refuse what is no strategy, and proposers that the counters could not tell apart.

    Raises:
        OptionError: It is none, or two of its proposers share a name.
    """
    if isinstance(strategy, type) or not isinstance(strategy, Strategy):
        raise OptionError(
            f"strategy must be an object such as Fixed(proposer, depth=3), got {strategy!r}: "
            f"{type(strategy).__name__} is no strategy"
        )
    names = [proposer.name for proposer in strategy.proposers]
    if len(set(names)) < len(names):
        raise OptionError(f"two proposers of one strategy share a name: {', '.join(names)}")


def checked_prompt(prompt: Sequence[int] | mx.array, vocab_size: int) -> list[int]:
    """The prompt on the host, if a model of that vocabulary can take it.

    Raises:
        PromptError: It cannot.
    """
    if isinstance(prompt, mx.array) and (
        prompt.ndim != 1 or not mx.issubdtype(prompt.dtype, mx.integer)
    ):
        raise PromptError(
            f"a prompt is one row of ids, (T,) integers, got {prompt.shape} {prompt.dtype}"
        )
    try:
        ids = to_ints(prompt) if isinstance(prompt, mx.array) else plain_ids(prompt)
    except TypeError as error:
        raise PromptError(
            f"a prompt is a sequence of token ids, and {error}: encode text first"
        ) from error
    if not ids:
        raise PromptError("the prompt is empty: give at least one token id")
    wrong = next((id_ for id_ in ids if not 0 <= id_ < vocab_size), None)
    if wrong is not None:
        raise PromptError(
            f"prompt id {wrong} is not among the model's {vocab_size}: the tokenizer is "
            "probably another model's"
        )
    return ids


def checked_count(max_tokens: object) -> int:
    """Tokens to emit at most, -1 for no limit.

    Raises:
        OptionError: It is no such number.
    """
    return validated_integer("max_tokens", max_tokens, -1, note="-1: no limit")


def check_sampling(sampling: object, vocab_size: int) -> None:
    """Refuse what says nothing about how tokens are chosen.

    Raises:
        OptionError: It is neither options nor a function, or it has ids that the model has not.
    """
    if isinstance(sampling, Sampling):
        sampling.check_ids(vocab_size)
    elif isinstance(sampling, type) or not (sampling is None or callable(sampling)):
        refuse("sampling", "a Sampling, as Sampling(temperature=0.7), or a sampler", sampling)


def check_processors(processors: object) -> None:
    """Refuse what is no sequence of functions.

    Raises:
        OptionError: It is none.
    """
    if not isinstance(processors, Sequence) or not all(map(callable, processors)):
        refuse(
            "logits_processors", "a sequence of functions (tokens, logits) -> logits", processors
        )


def check_stream(stream: object) -> None:
    """Refuse what is no stream.

    Raises:
        OptionError: It is none.
    """
    if not isinstance(stream, mx.Stream | mx.ThreadLocalStream | None):
        refuse("stream", "a stream of MLX, as mx.new_stream(mx.gpu), or None", stream)


def check_list(prompt_cache: object) -> None:
    """Refuse a prompt cache that could not be refilled.

    Raises:
        OptionError: It is no list.
    """
    if prompt_cache is not None and not isinstance(prompt_cache, list):
        kind = type(prompt_cache).__name__
        raise OptionError(f"prompt_cache must be a list, which is refilled, got a {kind}")
