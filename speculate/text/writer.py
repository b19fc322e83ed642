"""From tokens to pieces of text, and the figures that go with them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, cast, final

import mlx.core as mx
from typing_extensions import Protocol

from speculate.decoding.token import Token
from speculate.text.stops import StopStrings

if TYPE_CHECKING:
    from mlx_lm.generate import GenerationResponse
    from mlx_lm.tokenizer_utils import TokenizerWrapper


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
