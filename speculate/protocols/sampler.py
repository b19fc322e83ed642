"""The contract of a sampler: how much of a draft is accepted, and which token follows."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import attrs
import mlx.core as mx
from typing_extensions import Protocol, runtime_checkable

from speculate.protocols.proposer import Draft, DraftToken


@attrs.frozen(eq=False)
class Verification:
    """The outcome of one block of `k` drafts and `k + 1` rows, still on the device.

    Attributes:
        accepted: `()` int32, the number of accepted drafts, 0 to `k`.
        tokens: `(k + 1,)` ids; the block emits `drafts[:accepted]`, then the bonus token
            `tokens[accepted]`. Later entries are meaningless.
        logits: `(rows, vocabulary)`, after processors and before filters, for at least the
            rows up to `accepted`.
    """

    accepted: mx.array
    tokens: mx.array
    logits: mx.array


@runtime_checkable
class Sampler(Protocol):
    """Chooses the tokens of one sequence at a time; `Decoder(sampling=...)` takes one.

    Contract: the output has the distribution of plain decoding, whatever was drafted. A draft
    without a valid distribution (see `Draft`) is rejected together with all later drafts, and a
    token drawn from the target's distribution takes its place.

    A round calls `choose` for the drafted tokens, if the proposer has logits, then `verify`, and
    `commit` once it is known which tokens were emitted. A sequence may end before that.
    """

    @property
    def supports_lookahead(self) -> bool:
        """Whether `verify` may be called before the last token is known to be emitted.

        In rounds without drafts the next forward is then launched before the last token is read:
        `last_token` may be unread, and may turn out to be a stop token, after which nothing
        follows. `False` for a sampler whose `verify` reads tokens, or has side effects.
        """

    def begin(self, history: Sequence[int], position: int, stop_tokens: Collection[int], /) -> None:
        """Start a sequence, and forget any other: it may have ended in the middle of a round.

        Args:
            history: Ids that processors see before the tokens passed to `commit`.
            position: Sequence position of the first token that will be passed to `commit`.
            stop_tokens: Ids that end the sequence.
        """

    def choose(self, logits: mx.array, index: int, /) -> DraftToken:
        """Choose drafted token number `index` after the last token, for a proposer.

        Args:
            logits: `(1, vocabulary)`, the proposer's.
            index: 0 for the first drafted token.
        """

    def verify(self, last_token: mx.array, draft: Draft, logits: mx.array, /) -> Verification:
        """Verify a draft.

        Args:
            last_token: `(1,)`, the last token, which precedes the draft; not committed yet.
            draft: `k` ids of the target, `k >= 0`, with log-probabilities over all of its ids.
            logits: `(k + 1, vocabulary)`, the target's; row `i` predicts the token after the
                first `i` drafts.
        """

    def commit(self, tokens: mx.array, /) -> None:
        """Commit tokens `(m,)`, in order: the last token and the accepted drafts.

        At the end of a run and around a pause, tokens that were emitted are committed without
        another `verify`.
        """
