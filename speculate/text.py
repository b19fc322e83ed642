"""From what a caller has to token ids."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Final, TypedDict, cast, final

import attrs
import mlx.core as mx
from typing_extensions import Protocol, Unpack

from speculate.decoding.block import Token
from speculate.decoding.config import check_model, checked_count
from speculate.decoding.decoder import Decoder, default_strategy
from speculate.errors import OptionError, PromptError
from speculate.proposers.draft_model import DraftModel
from speculate.protocols import Observer, Rollbackable, SpeculativeModel, Strategy
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
    from mlx_lm.tokenizer_utils import TokenizerWrapper
    from transformers import PreTrainedTokenizerBase


Prompt = str | Sequence[int] | mx.array
"""Text, or token ids `(T,)`."""


def encode(
    tokenizer: TokenizerWrapper, prompt: Prompt, *, chat_template: bool = False
) -> list[int]:
    """Token ids of a prompt, as mlx-lm makes them.

    Args:
        tokenizer: The model's.
        prompt: Text or ids. Text gets the tokenizer's special tokens, unless it begins
            with the first of them already.
        chat_template: Put text into the tokenizer's chat template, as a user's message.

    Raises:
        OptionError: There is no chat template, or the prompt is not text.
        PromptError: They are no ids, or come as an array of another shape.
    """
    validated_flag("chat_template", chat_template)
    if isinstance(prompt, str):
        return _encode_chat(tokenizer, prompt) if chat_template else _encode_text(tokenizer, prompt)
    if chat_template:
        raise OptionError("chat_template needs a prompt of text; ids are past that")
    if not isinstance(prompt, mx.array):
        try:
            return plain_ids(prompt)
        except TypeError as error:
            raise PromptError(f"a prompt is text or token ids, and {error}") from error
    if prompt.ndim != 1:
        raise PromptError(f"a prompt of ids has the shape (T,), got {prompt.shape}")
    return cast("list[int]", prompt.tolist())


def _encode_text(tokenizer: TokenizerWrapper, text: str) -> list[int]:
    first = cast("str | None", tokenizer.bos_token)
    special = first is None or not text.startswith(first)
    return cast("list[int]", tokenizer.encode(text, add_special_tokens=special))


def _encode_chat(tokenizer: TokenizerWrapper, text: str) -> list[int]:
    if not tokenizer.has_chat_template:
        raise OptionError("the tokenizer has no chat template: leave chat_template out")
    message = {"role": "user", "content": text}
    ids = tokenizer.apply_chat_template([message], add_generation_prompt=True)
    return cast("list[int]", ids)


@final
class StopStrings:
    """Lets text through up to the first stop string.

    Where the text is cut does not depend on how it came in pieces: the string that is
    complete first counts. What may still become a stop string is held back.

    Args:
        strings: One string, or several.

    Raises:
        OptionError: One is empty, or no string.
    """

    def __init__(self, strings: str | Sequence[str]) -> None:
        several: object = [strings] if isinstance(strings, str) else strings
        if isinstance(several, bytes) or not isinstance(several, Iterable):
            refuse("stop", "a stop string, or several", strings)
        self._strings = [validated_text("a stop string", text) for text in several]
        self._held = ""
        self._found = False

    @property
    def found(self) -> bool:
        """Whether the text has reached a stop string."""
        return self._found

    def feed(self, text: str) -> str:
        """Take in the next piece; return what is sure to come before any stop string."""
        if self._found:
            return ""
        text = self._held + text
        ends = [(at + len(s), at) for s in self._strings if (at := text.find(s)) >= 0]
        if ends:
            self._found, self._held = True, ""
            return text[: min(ends)[1]]
        sure = len(text) - max((_overlap(text, s) for s in self._strings), default=0)
        self._held = text[sure:]
        return text[:sure]

    def flush(self) -> str:
        """The text is over: return what was held back."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop` and is not all of it."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


class Detokenizer(Protocol):
    """mlx-lm's streaming detokenizer."""

    @property
    def last_segment(self) -> str:
        """Text that has become readable since this was read last."""

    def add_token(self, token: int, /) -> None:
        """Take in a token."""

    def finalize(self) -> None:
        """Make readable what waited for more tokens."""


@final
class Writer:
    """Turns tokens into text, up to a stop string.

    Args:
        tokenizer: The model's.
        stops: What ends the text.
    """

    def __init__(self, tokenizer: TokenizerWrapper, stops: StopStrings) -> None:
        self._detokenizer = cast(Detokenizer, tokenizer.detokenizer)
        self._stops = stops

    def write(self, token: Token) -> tuple[str, str | None]:
        """Text that `token` completes, and why the text ends with it, if it does."""
        reason = token.finish_reason
        if reason != "stop":
            self._detokenizer.add_token(token.id)
        if reason is not None:
            self._detokenizer.finalize()
        text = self._stops.feed(self._detokenizer.last_segment)
        if self._stops.found:
            return text, "stop"
        return (text if reason is None else text + self._stops.flush()), reason


@final
class Meter:
    """Counts and times tokens, as mlx-lm does. Make it when the first one is asked for.

    Args:
        prompt_tokens: Tokens of the prompt.
    """

    def __init__(self, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._prompt_tps = 0.0
        self._since = time.perf_counter()
        self._count = 0

    def response(
        self, token: Token, logprobs: mx.array, text: str, reason: str | None
    ) -> GenerationResponse:
        """What mlx-lm yields for the next token."""
        from mlx_lm.generate import GenerationResponse

        now = time.perf_counter()
        if self._count == 0:
            self._prompt_tps = self._prompt_tokens / (now - self._since)
            self._since = now
            now = time.perf_counter()
        self._count += 1
        return GenerationResponse(
            text=text,
            token=token.id,
            logprobs=logprobs,
            from_draft=token.from_draft,
            prompt_tokens=self._prompt_tokens,
            prompt_tps=self._prompt_tps,
            generation_tokens=self._count,
            generation_tps=self._count / max(now - self._since, 1e-9),
            peak_memory=mx.get_peak_memory() / 1e9,
            finish_reason=reason,
        )


ELSEWHERE: Final[Mapping[str, str]] = {
    "temp": "sampling=Sampling(temperature=...)",
    "sampler": "sampling=sampler",
    "depth": "strategy=Fixed(proposer, depth=...)",
    "proposer": "strategy=Fixed(proposer, depth=3) or strategy=Adaptive(proposer)",
    "input_embeddings": "prompt=ids, since embeddings are not supported",
    "eos_token_ids": "adapt(model, eos_token_ids=...)",
    "stop_tokens": "adapt(model, eos_token_ids=...), or stop= for strings",
    "history": "Decoder.generate(..., history=...)",
}
"""Names that callers know from mlx-lm or from other functions, and what says the same here."""


class DecoderOptions(TypedDict, total=False):
    """Options that go on to `Decoder`, where they are explained."""

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
    sampling: Sampling | SamplerCallable | None = None,
    max_tokens: int = 256,
    stop: str | Sequence[str] = (),
    chat_template: bool = False,
    prompt_cache: list[object] | list[Rollbackable] | None = None,
    draft_model: SpeculativeModel | None = None,
    num_draft_tokens: int | None = None,
    **options: Unpack[DecoderOptions],
) -> Generator[GenerationResponse, None, None]:
    """Generate text token by token, as mlx-lm's function of this name does.

    Args:
        model: The target, from `speculate.load` or `speculate.adapt`.
        tokenizer: Its tokenizer. Its end-of-text ids end the text, besides the model's own.
        prompt: Text, or ids. On a later turn over the same cache only the new ones.
        strategy: Who drafts, and how much; see `Decoder`.
        sampling: How tokens are chosen: options, or a sampler of mlx-lm; greedy by default.
        max_tokens: Tokens to generate; -1 for no limit.
        stop: Strings that end the text. The text is cut in front of the first one, wherever
            its tokens break. The cache then holds everything up to the token that completed
            the string.
        chat_template: Put a prompt of text into the tokenizer's chat template.
        prompt_cache: See `Decoder.generate`. With the last response it is given back.
        draft_model: In place of `strategy`, as in mlx-lm: a smaller model from
            `speculate.load` or `speculate.adapt`. It drafts besides the model's own head and
            a lookup, as much as pays.
        num_draft_tokens: With a draft model: it drafts alone, so many tokens in each round.
        **options: See `Decoder`. Runs on mlx-lm's generation stream by default.

    Returns:
        A response a token, as in mlx-lm: `text` may be empty, and leaves out the end-of-text
        token; `from_draft` tells an accepted draft; the last has a `finish_reason`.

    Raises:
        OptionError: An option cannot be used, `max_tokens=0` among them.
        PromptError: The prompt is empty, or has ids that the model has not.
    """
    from mlx_lm.generate import generation_stream
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    _check_names(options)
    if checked_count(max_tokens) == 0:
        raise OptionError("max_tokens must not be 0 (-1: no limit)")
    strategy = _strategy(model, strategy, draft_model, num_draft_tokens)
    if not isinstance(tokenizer, TokenizerWrapper):
        tokenizer = TokenizerWrapper(tokenizer)
    stops = StopStrings(stop)
    ids = encode(tokenizer, prompt, chat_template=chat_template)
    stream = options["stream"] = options.get("stream") or generation_stream
    decoder = Decoder(model, strategy, sampling, **options)
    # A tokenizer may know ids that the model has no column for: they never come.
    ends = {id_ for id_ in tokenizer.eos_token_ids if id_ in range(model.vocab_size)}
    tokens = decoder.generate(ids, max_tokens, prompt_cache, ends)
    return _responses(model, tokens, Writer(tokenizer, stops), len(ids), stream)


def generate(
    model: SpeculativeModel,
    tokenizer: TokenizerWrapper | PreTrainedTokenizerBase,
    prompt: Prompt,
    *,
    strategy: Strategy | None = None,
    sampling: Sampling | SamplerCallable | None = None,
    max_tokens: int = 256,
    stop: str | Sequence[str] = (),
    chat_template: bool = False,
    prompt_cache: list[object] | list[Rollbackable] | None = None,
    draft_model: SpeculativeModel | None = None,
    num_draft_tokens: int | None = None,
    verbose: bool = False,
    **options: Unpack[DecoderOptions],
) -> str:
    """Generate a text, as mlx-lm's function of this name does.

    Args:
        model: See `stream_generate` for this and all that is not explained here.
        tokenizer: The model's.
        prompt: Text, or ids.
        strategy: Who drafts, and how much.
        sampling: How tokens are chosen.
        max_tokens: Tokens to generate; -1 for no limit.
        stop: Strings that end the text.
        chat_template: Put a prompt of text into the tokenizer's chat template.
        prompt_cache: A list of caches.
        draft_model: A smaller model, in place of a strategy.
        num_draft_tokens: Tokens that it drafts in each round.
        verbose: Print the text as it comes, and mlx-lm's three lines of figures.
        **options: See `Decoder`.
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
    """Refuse options that there are none of, and name what stands for those of mlx-lm.

    Raises:
        OptionError: There is one.
    """
    unknown = sorted(options.keys() - DecoderOptions.__annotations__.keys())
    if not unknown:
        return
    fields = {field.name for field in attrs.fields(Sampling)}
    sampled = {name: f"sampling=Sampling({name}=...)" for name in fields}
    known = {**sampled, **ELSEWHERE}
    remedies = [f"in place of {name} give {known[name]}" for name in unknown if name in known]
    others = "strategy= says who drafts, sampling= how tokens are chosen, and the rest is Decoder's"
    raise OptionError(f"no option is called {', '.join(unknown)}: {'; '.join([*remedies, others])}")


def _strategy(
    model: SpeculativeModel,
    strategy: Strategy | None,
    draft_model: SpeculativeModel | None,
    num_draft_tokens: int | None,
) -> Strategy | None:
    """What `draft_model` and `num_draft_tokens` say, in mlx-lm's words, as a strategy.

    Raises:
        OptionError: They do not go together, or one cannot be used.
    """
    if draft_model is None:
        if num_draft_tokens is not None:
            raise OptionError(
                "num_draft_tokens goes with draft_model: for other proposers give strategy=, as "
                "strategy=Fixed(MTPChain(), depth=3)"
            )
        return strategy
    if strategy is not None:
        raise OptionError(
            "draft_model goes without a strategy: give strategy=Fixed(DraftModel(draft), depth=3) "
            "or strategy=Adaptive(DraftModel(draft)) alone"
        )
    check_model(draft_model, "draft_model")
    drafter = DraftModel(draft_model)
    if num_draft_tokens is None:
        return default_strategy(model, drafter)
    return Fixed(drafter, validated_integer("num_draft_tokens", num_draft_tokens, 0, MAX_DEPTH))


def _responses(
    model: SpeculativeModel,
    tokens: Generator[Token, None, None],
    writer: Writer,
    prompt_tokens: int,
    stream: mx.Stream | mx.ThreadLocalStream,
) -> Generator[GenerationResponse, None, None]:
    from mlx_lm.generate import wired_limit

    from speculate.models.adapter import StockAdapter

    module = cast("Module", model.stock if isinstance(model, StockAdapter) else model)
    with wired_limit(module, [cast(mx.Stream, stream)]), closing(tokens):
        meter = Meter(prompt_tokens)
        for token in tokens:
            with mx.stream(stream):
                logprobs = token.logprobs
            text, reason = writer.write(token)
            response = meter.response(token, logprobs, text, reason)
            if reason is not None:
                tokens.close()
            yield response
            if reason is not None:
                break


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
