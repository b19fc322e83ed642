"""What a decoder yields."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import cast, final

import attrs
import mlx.core as mx

from speculate.decoding.block import Block, to_ints


@final
class Scores:
    """Log-probabilities of all tokens of a block, computed when one of them is first read.

    Args:
        logits: `(rows, vocabulary)`.
    """

    def __init__(self, logits: mx.array) -> None:
        self._logits = logits
        self._logprobs: mx.array | None = None

    def row(self, index: int) -> mx.array:
        """Those of one row, `(vocabulary,)` float32."""
        if self._logprobs is None:
            logits = self._logits.astype(mx.float32)
            self._logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        return self._logprobs[index]


@final
@attrs.frozen(eq=False)
class Token:
    """One emitted token.

    Attributes:
        id: Its id in the model's vocabulary.
        from_draft: It is a draft that the target accepted. The target's own tokens, the
            one after an accepted draft included, say `False`.
        proposer: Name of whoever drafted it; `None` for the target's own.
        finish_reason: `None`, or why the text ends here: "stop" or "length".
    """

    id: int
    from_draft: bool
    proposer: str | None
    finish_reason: str | None
    _scores: Scores = attrs.field(repr=False)
    _row: int = attrs.field(repr=False)

    @property
    def logprobs(self) -> mx.array:
        """The target's log-probabilities, `(vocabulary,)` float32. Computed when read.

        After logits processors, and before the filters and the temperature.
        """
        return self._scores.row(self._row)

    def top_logprobs(self, n: int) -> list[tuple[int, float]]:
        """The `n` most likely ids and their log-probabilities, the most likely first.

        Computed when called; synchronises.
        """
        logprobs = self.logprobs
        ids = mx.argsort(-logprobs)[:n]
        return list(zip(to_ints(ids), cast("list[float]", logprobs[ids].tolist()), strict=True))


def tokens_of(
    block: Block, ids: Sequence[int], remaining: int | None, stop_tokens: Collection[int]
) -> list[Token]:
    """What a block gives, up to a stop token or the end of the budget.

    Args:
        block: The block.
        ids: As read from it: accepted drafts, then the target's own token.
        remaining: Tokens that may still be emitted; `None` without a limit.
        stop_tokens: Ids that end the text. One that falls on the last token of the budget
            counts as a stop.
    """
    tokens: list[Token] = []
    scores = Scores(block.decision.logits)
    for index, id_ in enumerate(ids):
        reason = "length" if remaining == index + 1 else None
        if id_ in stop_tokens:
            reason = "stop"
        from_draft = index < len(ids) - 1
        name = block.proposer if from_draft else None
        tokens.append(Token(id_, from_draft, name, reason, scores, index))
        if reason is not None:
            break
    return tokens
