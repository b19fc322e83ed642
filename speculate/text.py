"""Text in, text out: `generate`, `stream_generate` and stop strings."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final, TypedDict, cast, final

import attrs
import mlx.core as mx
from typing_extensions import Unpack

from speculate.decoding.block import Token
from speculate.decoding.config import check_model, validated_count
from speculate.decoding.decoder import Decoder, default_strategy
from speculate.errors import OptionError, PromptError
from speculate.proposers.draft_model import DraftModel
from speculate.protocols import Observer, Rollbackable, Sampler, SpeculativeModel, Strategy
from speculate.sampling.acceptance import SamplerCallable
from speculate.sampling.options import Sampling
from speculate.strategies.fixed import MAX_DEPTH, Fixed
from speculate.validation import (
    plain_ids,
    refuse,
    validated_flag,
    validated_integer,
    validated_text,
)

if TYPE_CHECKING:
    from mlx.nn.layers.base import Module
    from mlx_lm.generate import GenerationResponse
    from mlx_lm.tokenizer_utils import StreamingDetokenizer, TokenizerWrapper
    from transformers import PreTrainedTokenizerBase


Prompt = str | Sequence[int] | mx.array
"""A string, or token ids `(T,)`."""

EQUIVALENTS: Final[Mapping[str, str]] = {
    "temp": "sampling=Sampling(temperature=...)",
    "sampler": "sampling=sampler",
    "depth": "strategy=Fixed(proposer, depth=...)",
    "proposer": "strategy=Fixed(proposer, depth=3) or strategy=Adaptive(proposer)",
    "input_embeddings": "prompt=ids, since embeddings are not supported",
    "eos_token_ids": "adapt(model, eos_token_ids=...)",
    "stop_tokens": "adapt(model, eos_token_ids=...), or stop= for strings",
    "history": "Decoder.generate(..., history=...)",
}
"""Option names of mlx-lm or of other functions, and what to pass here instead."""


def encode(
    tokenizer: TokenizerWrapper, prompt: Prompt, *, chat_template: bool = False
) -> list[int]:
    """Encode a prompt as mlx-lm does.

    Args:
        tokenizer: The model's tokenizer.
        prompt: A string or token ids. Special tokens are added to a string unless it already
            begins with the tokenizer's BOS token.
        chat_template: Apply the tokenizer's chat template to a string, as one user message.

    Returns:
        Token ids.

    Raises:
        OptionError: The tokenizer has no chat template, or the prompt is not a string.
        PromptError: The prompt holds no token ids, or is an array of another shape.
    """
    validated_flag("chat_template", chat_template)
    if isinstance(prompt, str):
        if not chat_template:
            bos = cast("str | None", tokenizer.bos_token)
            special = bos is None or not prompt.startswith(bos)
            return cast("list[int]", tokenizer.encode(prompt, add_special_tokens=special))
        if not tokenizer.has_chat_template:
            raise OptionError("the tokenizer has no chat template: omit chat_template")
        message = {"role": "user", "content": prompt}
        ids = tokenizer.apply_chat_template([message], add_generation_prompt=True)
        return cast("list[int]", ids)
    if chat_template:
        raise OptionError("chat_template needs a text prompt, not token ids")
    if not isinstance(prompt, mx.array):
        try:
            return plain_ids(prompt)
        except TypeError as error:
            raise PromptError(f"a prompt must be text or token ids: {error}") from error
    if prompt.ndim != 1:
        raise PromptError(f"an array of token ids must have the shape (T,), got {prompt.shape}")
    return cast("list[int]", prompt.tolist())


@final
class StopStrings:
    """Passes text through up to the first stop string.

    The stop string that is completed first wins, so the cut does not depend on how the text
    was split into pieces. A suffix that may still become a stop string is held back.

    Args:
        strings: One stop string, or several.

    Attributes:
        found: Whether the text has reached a stop string.

    Raises:
        OptionError: A stop string is empty or not a string.
    """

    def __init__(self, strings: str | Sequence[str]) -> None:
        several: object = [strings] if isinstance(strings, str) else strings
        if isinstance(several, bytes) or not isinstance(several, Iterable):
            refuse("stop", "a stop string or a sequence of them", strings)
        self._strings = [validated_text("a stop string", text) for text in several]
        self._held = ""
        self.found: bool = False

    def feed(self, text: str) -> str:
        """Add a piece of text, and return what certainly precedes any stop string."""
        if self.found:
            return ""
        text = self._held + text
        ends = [(at + len(s), at) for s in self._strings if (at := text.find(s)) >= 0]
        if ends:
            self.found, self._held = True, ""
            return text[: min(ends)[1]]
        sure = len(text) - max((_overlap(text, s) for s in self._strings), default=0)
        self._held = text[sure:]
        return text[:sure]

    def flush(self) -> str:
        """Return the text that was held back; call it at the end of the text."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


class DecoderOptions(TypedDict, total=False):
    """Options passed on to `Decoder`, which documents them."""

    logits_processors: Sequence[Callable[[mx.array, mx.array], mx.array]]
    kv_bits: int | None
    kv_group_size: int
    quantized_kv_start: int
    max_kv_size: int | None
    prefill_step_size: int
    prompt_progress_callback: Callable[[int, int], None] | None
    observer: Observer | None
    stream: mx.Stream | mx.ThreadLocalStream | None


def stream_generate(
    model: SpeculativeModel,
    tokenizer: TokenizerWrapper | PreTrainedTokenizerBase,
    prompt: Prompt,
    *,
    strategy: Strategy | None = None,
    sampling: Sampling | Sampler | SamplerCallable | None = None,
    max_tokens: int = 256,
    stop: str | Sequence[str] = (),
    chat_template: bool = False,
    prompt_cache: list[object] | list[Rollbackable] | None = None,
    draft_model: SpeculativeModel | None = None,
    num_draft_tokens: int | None = None,
    **options: Unpack[DecoderOptions],
) -> Generator[GenerationResponse, None, None]:
    """Generate text token by token, like mlx-lm's function of the same name.

    Args:
        model: The target, from `speculate.load` or `speculate.adapt`.
        tokenizer: The target's tokenizer. Its end-of-text ids stop generation, in addition to
            the model's own.
        prompt: A string or token ids `(T,)`. On later turns over a cache, only the new part.
        strategy: Which proposer drafts and how many tokens; see `Decoder`.
        sampling: Sampling options, a `Sampler`, or an mlx-lm sampler; greedy by default.
        max_tokens: Most tokens to generate; -1 for no limit.
        stop: Stop strings. The text is cut before the first one, even inside a token. The cache
            then holds everything up to the token that completed the stop string.
        chat_template: Apply the tokenizer's chat template to a text prompt.
        prompt_cache: See `Decoder.generate`. It is usable again with the last response.
        draft_model: In place of `strategy`, a smaller adapted model. It is used alongside the
            target's own head and prompt lookup, whenever drafting is expected to save time.
        num_draft_tokens: Tokens that the draft model drafts each round, with no other proposer.
        **options: See `Decoder`. `stream` is mlx-lm's generation stream by default.

    Returns:
        One mlx-lm response per token: `text` may be empty and excludes the end-of-text token;
        `from_draft` marks an accepted draft; the last response has a `finish_reason`.

    Raises:
        OptionError: An option cannot be used, such as `max_tokens=0`.
        PromptError: The prompt is empty or has ids outside the model's vocabulary.
    """
    from mlx_lm.generate import generation_stream
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    _check_names(options)
    if validated_count(max_tokens) == 0:
        raise OptionError("max_tokens must not be 0 (-1: no limit)")
    strategy = _strategy(model, strategy, draft_model, num_draft_tokens)
    if not isinstance(tokenizer, TokenizerWrapper):
        tokenizer = TokenizerWrapper(tokenizer)
    stops = StopStrings(stop)
    ids = encode(tokenizer, prompt, chat_template=chat_template)
    stream = options["stream"] = options.get("stream") or generation_stream
    decoder = Decoder(model, strategy, sampling, **options)
    # A tokenizer may have ids beyond the model's vocabulary; they are never emitted.
    ends = {id_ for id_ in tokenizer.eos_token_ids if id_ in range(model.vocab_size)}
    tokens = decoder.generate(ids, max_tokens, prompt_cache, ends)
    return _responses(model, tokens, tokenizer.detokenizer, stops, len(ids), stream)


def generate(
    model: SpeculativeModel,
    tokenizer: TokenizerWrapper | PreTrainedTokenizerBase,
    prompt: Prompt,
    *,
    strategy: Strategy | None = None,
    sampling: Sampling | Sampler | SamplerCallable | None = None,
    max_tokens: int = 256,
    stop: str | Sequence[str] = (),
    chat_template: bool = False,
    prompt_cache: list[object] | list[Rollbackable] | None = None,
    draft_model: SpeculativeModel | None = None,
    num_draft_tokens: int | None = None,
    verbose: bool = False,
    **options: Unpack[DecoderOptions],
) -> str:
    """Generate text, like mlx-lm's function of the same name.

    Arguments and errors are those of `stream_generate`, which documents them. With `verbose`, the
    text is also printed as it is generated, and then mlx-lm's three lines of figures.

    Returns:
        The generated text.
    """
    validated_flag("verbose", verbose)
    responses = stream_generate(
        model,
        tokenizer,
        prompt,
        strategy=strategy,
        sampling=sampling,
        max_tokens=max_tokens,
        stop=stop,
        chat_template=chat_template,
        prompt_cache=prompt_cache,
        draft_model=draft_model,
        num_draft_tokens=num_draft_tokens,
        **options,
    )
    return "".join(_shown(responses) if verbose else (r.text for r in responses))


def _check_names(options: Mapping[str, object]) -> None:
    """Refuse unknown options, and name the equivalents of mlx-lm's."""
    unknown = sorted(options.keys() - DecoderOptions.__annotations__.keys())
    if not unknown:
        return
    fields = attrs.fields_dict(Sampling)
    known = {name: f"sampling=Sampling({name}=...)" for name in fields} | dict(EQUIVALENTS)
    remedies = [f"in place of {name} give {known[name]}" for name in unknown if name in known]
    others = "strategy= configures drafting, sampling= configures sampling, the rest is Decoder's"
    raise OptionError(f"no option is called {', '.join(unknown)}: {'; '.join([*remedies, others])}")


def _strategy(
    model: SpeculativeModel,
    strategy: Strategy | None,
    draft_model: SpeculativeModel | None,
    num_draft_tokens: int | None,
) -> Strategy | None:
    """Turn mlx-lm's `draft_model` and `num_draft_tokens` into a strategy."""
    if draft_model is None:
        if num_draft_tokens is not None:
            hint = "for other proposers pass strategy=, such as strategy=Fixed(MTPChain(), depth=3)"
            raise OptionError(f"num_draft_tokens needs draft_model: {hint}")
        return strategy
    if strategy is not None:
        only = "strategy=Fixed(DraftModel(draft), depth=3) or strategy=Adaptive(DraftModel(draft))"
        raise OptionError(f"draft_model and strategy exclude each other: pass only {only}")
    check_model(draft_model, "draft_model")
    drafter = DraftModel(draft_model)
    if num_draft_tokens is None:
        return default_strategy(model, drafter)
    return Fixed(drafter, validated_integer("num_draft_tokens", num_draft_tokens, 0, MAX_DEPTH))


def _responses(
    model: SpeculativeModel,
    tokens: Generator[Token, None, None],
    detokenizer: StreamingDetokenizer,
    stops: StopStrings,
    prompt_tokens: int,
    stream: mx.Stream | mx.ThreadLocalStream,
) -> Generator[GenerationResponse, None, None]:
    """Responses up to a stop string, with tokens counted and timed as mlx-lm does."""
    from mlx_lm.generate import GenerationResponse, wired_limit

    from speculate.models.adapter import StockAdapter

    module = cast("Module", model.stock if isinstance(model, StockAdapter) else model)
    with wired_limit(module, [cast(mx.Stream, stream)]), closing(tokens):
        since, prompt_tps = time.perf_counter(), 0.0
        for count, token in enumerate(tokens, 1):
            with mx.stream(stream):
                logprobs = token.logprobs
            text, reason = _completed(detokenizer, stops, token)
            now = time.perf_counter()
            if count == 1:
                prompt_tps = prompt_tokens / (now - since)
                since, now = now, time.perf_counter()
            response = GenerationResponse(
                text=text,
                token=token.id,
                logprobs=logprobs,
                from_draft=token.from_draft,
                prompt_tokens=prompt_tokens,
                prompt_tps=prompt_tps,
                generation_tokens=count,
                generation_tps=count / max(now - since, 1e-9),
                peak_memory=mx.get_peak_memory() / 1e9,
                finish_reason=reason,
            )
            if reason is not None:
                tokens.close()
            yield response
            if reason is not None:
                break


def _completed(
    detokenizer: StreamingDetokenizer, stops: StopStrings, token: Token
) -> tuple[str, str | None]:
    """The text that `token` completes, and the finish reason or `None`."""
    reason = token.finish_reason
    if reason != "stop":
        detokenizer.add_token(token.id)
    if reason is not None:
        detokenizer.finalize()
    text = stops.feed(detokenizer.last_segment)
    if stops.found:
        return text, "stop"
    return (text if reason is None else text + stops.flush()), reason


def _shown(responses: Generator[GenerationResponse, None, None]) -> Generator[str, None, None]:
    print("=" * 10)
    for response in responses:
        print(response.text, end="", flush=True)
        yield response.text
    print()
    print("=" * 10)
    print(f"Prompt: {response.prompt_tokens} tokens, {response.prompt_tps:.3f} tokens-per-sec")
    rate = f"{response.generation_tps:.3f} tokens-per-sec"
    print(f"Generation: {response.generation_tokens} tokens, {rate}")
    print(f"Peak memory: {response.peak_memory:.3f} GB")
