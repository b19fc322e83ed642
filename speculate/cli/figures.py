"""A generated text and its counters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, final

import attrs

from speculate.decoding.stats import Stats
from speculate.protocols import Round, SpeculativeModel, Strategy
from speculate.sampling.options import Sampling
from speculate.text import DecoderOptions, stream_generate

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

Report = Callable[[Round, Stats], None]
"""Hears of a round, and of all up to it."""


@final
@attrs.frozen
class Run:
    """What came out of a prompt.

    Attributes:
        ids: The tokens.
        text: Their text.
        stats: Rounds and drafts.
        tokens_per_second: Of generation alone.
    """

    ids: Sequence[int]
    text: str
    stats: Stats
    tokens_per_second: float

    @property
    def accepted(self) -> str:
        """Accepted drafts of those that were made."""
        return f"{self.stats.accepted_tokens} of {self.stats.draft_tokens}"

    def line(self) -> str:
        """The counters, in a line."""
        drafts = "nothing drafted"
        if self.stats.drafts:
            length = f"mean acceptance length {self.stats.mean_acceptance_length:.2f}"
            rate = f"{self.stats.acceptance_rate:.0%}"
            drafts = f"drafts accepted {self.accepted} ({rate}), {length}"
        return (
            f"{len(self.ids)} tokens, {self.stats.rounds} target passes, {drafts}, "
            f"{self.tokens_per_second:.1f} tokens/s"
        )


def decode(
    model: SpeculativeModel,
    tokenizer: TokenizerWrapper,
    prompt: str,
    strategy: Strategy,
    *,
    max_tokens: int,
    sampling: Sampling | None = None,
    stop: Sequence[str] = (),
    chat_template: bool = False,
    write: Callable[[str], None] = lambda _: None,
    reports: Sequence[Report] = (),
    options: DecoderOptions | None = None,
) -> Run:
    """Generate a text, and count.

    Args:
        model: The target.
        tokenizer: Its tokenizer.
        prompt: Text.
        strategy: Who drafts, and how much.
        max_tokens: Tokens to generate; -1 for no limit.
        sampling: How tokens are chosen; greedy by default.
        stop: Strings that end the text.
        chat_template: Put the prompt into the tokenizer's chat template.
        write: Called with every piece of text.
        reports: Called with every round, and the counters with it.
        options: For the decoder.
    """
    stats = Stats(seed=sampling.seed if sampling and sampling.temperature > 0 else None)

    def observe(round: Round, /) -> None:
        stats.count(round)
        for report in reports:
            report(round, stats)

    given: DecoderOptions = {**(options or {}), "observer": observe}
    ids: list[int] = []
    pieces: list[str] = []
    for response in stream_generate(
        model,
        tokenizer,
        prompt,
        strategy=strategy,
        sampling=sampling,
        max_tokens=max_tokens,
        stop=stop,
        chat_template=chat_template,
        **given,
    ):
        ids.append(response.token)
        pieces.append(response.text)
        write(response.text)
    return Run(ids, "".join(pieces), stats, response.generation_tps)
