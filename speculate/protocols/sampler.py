"""What decides how much of a draft stands, and which token comes after it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import attrs
import mlx.core as mx
from typing_extensions import Protocol

from speculate.protocols.proposer import Choice, Draft


@attrs.frozen(eq=False)
class Decision:
    """The outcome of one block of `k` drafts and `k + 1` rows, still on the device.

    Attributes:
        accepted: `()` int32, the number of drafts that stand, 0 to `k`.
        tokens: `(k + 1,)` ids; the block emits `drafts[:accepted]`, then `tokens[accepted]`.
            What stands behind that means nothing.
        logits: `(rows, vocabulary)`, after processors and before filters, for at least the
            rows up to `accepted`.
    """

    accepted: mx.array
    tokens: mx.array
    logits: mx.array


class Sampler(Protocol):
    """Chooses the tokens of one text.

    Law: what it emits has the law of plain decoding, whatever was drafted. A draft whose law
    is none, as `Draft` says, falls with all behind it, and a token of the target's own law
    takes its place.
    """

    @property
    def launches_ahead(self) -> bool:
        """Whether it may be shown a row before the text is sure to go on so far."""

    def begin(self, history: Sequence[int], position: int, stop_tokens: Collection[int], /) -> None:
        """A text starts.

        Args:
            history: Ids that processors see in front of what is kept.
            position: Position in the text of the first id that will be kept.
            stop_tokens: Ids after which the text does not go on.
        """

    def choose(self, logits: mx.array, index: int, /) -> Choice:
        """Pick draft number `index` after the newest token, for a proposer.

        Args:
            logits: `(1, vocabulary)`, the proposer's.
            index: 0 for the first draft.
        """

    def verify(self, newest: mx.array, draft: Draft, logits: mx.array, /) -> Decision:
        """Decide on a draft.

        Args:
            newest: `(1,)`, the token in front of the draft, not kept yet.
            draft: `k` of the target's ids, `k >= 0`, with laws over all of them.
            logits: `(k + 1, vocabulary)`, the target's; row `i` scores what comes after
                the first `i` drafts.
        """

    def keep(self, tokens: mx.array, /) -> None:
        """Tokens `(m,)` became text, in order: the newest one and what was kept of a draft."""
