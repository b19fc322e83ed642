"""What decides how much of a draft stands, and which token comes after it."""

import attrs
import mlx.core as mx
from typing_extensions import Protocol

from speculate.protocols.proposer import Draft


@attrs.frozen(eq=False)
class Decision:
    """The outcome of one block of `k` drafts and `k + 1` rows, still on the device.

    Attributes:
        accepted: `()` int32, the number of drafts that stand, 0 to `k`.
        tokens: `(k + 1,)` ids; the block emits `drafts[:accepted]`, then `tokens[accepted]`.
    """

    accepted: mx.array
    tokens: mx.array


class Sampler(Protocol):
    """Chooses tokens. Never synchronises with the device."""

    def choose(self, logits: mx.array, index: int, /) -> mx.array:
        """Pick draft number `index` after the newest token, for a proposer.

        Args:
            logits: `(1, vocabulary)`, the proposer's.
            index: 0 for the first draft.

        Returns:
            `(1,)` ids.
        """

    def verify(self, logits: mx.array, draft: Draft, /) -> Decision:
        """Decide on a draft.

        Args:
            logits: `(k + 1, vocabulary)`, the target's; row `i` scores what comes after
                the first `i` drafts.
            draft: `k` tokens, `k >= 0`.
        """
