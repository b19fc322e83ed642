"""What a decoder yields."""

from __future__ import annotations

from typing import cast, final

import attrs
import mlx.core as mx

from speculate.decoding.block import to_ints


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
    _logits: mx.array = attrs.field(repr=False)
    _row: int = attrs.field(repr=False)

    @property
    def logprobs(self) -> mx.array:
        """The target's log-probabilities, `(vocabulary,)` float32. Computed when read.

        After logits processors, and before the filters and the temperature.
        """
        logits = self._logits[self._row].astype(mx.float32)
        return logits - mx.logsumexp(logits, keepdims=True)

    def top_logprobs(self, n: int) -> list[tuple[int, float]]:
        """The `n` most likely ids and their log-probabilities, the most likely first.

        Computed when called; synchronises.
        """
        logprobs = self.logprobs
        ids = mx.argsort(-logprobs)[:n]
        return list(zip(to_ints(ids), cast("list[float]", logprobs[ids].tolist()), strict=True))
