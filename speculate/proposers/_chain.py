"""What model-based proposers share: the chain loop, and the backlog of committed tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, final

import mlx.core as mx

from speculate._mx import arrays_of
from speculate.protocols import Draft, DraftSampler, DraftToken, Rollbackable, SupportsFingerprint

PROMPT_TOKENS: Final = 64
"""A commit of at least this many tokens is part of a prompt, and is fed at once."""

MAX_BACKLOG: Final = 1024
"""Tokens at which the backlog is fed even without a draft: in vain if none is asked for again.

More would delay the next draft, and keep more hidden states in memory.
"""

MAX_SHARED_BACKLOG: Final = 12
"""Most tokens of the backlog that share a forward with the first step of a draft.

That forward computes logits for each of them, and records what is needed to roll them back.
"""


@final
class Backlog(list[int]):
    """Committed tokens, in order, that the proposer has not fed to its model yet.

    They are kept on the host: an array would have to be evaluated early, because the next step
    may run in another thread, where the streams of this one are unknown.
    """

    def tokens(self) -> mx.array:
        """All tokens, `(n,)` uint32."""
        return mx.array(self, dtype=mx.uint32)

    def before(self, token: mx.array) -> mx.array:
        """All tokens followed by `token` `(1,)`."""
        return mx.concatenate([self.tokens(), token]) if self else token

    def should_flush(self, committed: int) -> bool:
        """Whether to feed all tokens now, after a commit of `committed` tokens."""
        return committed >= PROMPT_TOKENS or len(self) >= MAX_BACKLOG

    def own_batch(self) -> int:
        """Tokens to feed in a batch of their own before a draft; see `SupportsBacklog.backlog`."""
        return len(self) if len(self) > MAX_SHARED_BACKLOG else 0


def fingerprint_of(part: object) -> str:
    """The fingerprint of a model or a head; an empty string if it has none."""
    return part.fingerprint if isinstance(part, SupportsFingerprint) else ""


def draft_chain(
    tokens: mx.array,
    limit: int,
    choose: DraftSampler,
    step: Callable[[mx.array, int], mx.array],
    cache: Sequence[Rollbackable],
) -> Draft:
    """Draft `limit` tokens, at least 1, each from the logits after the previous one.

    `step(tokens, index)` feeds `cache`, and returns logits `(1, vocabulary)` of the next token.
    The first step is fed `tokens` `(n,)`: backlog and last token. The arrays of `cache` are
    evaluated with the last step.
    """
    chain: list[DraftToken] = []
    while len(chain) < limit:
        chain.append(choose(step(tokens, len(chain)), len(chain)))
        tokens = chain[-1].token
        # The device starts this step while the host builds the next one.
        mx.async_eval(tokens, arrays_of(cache) if len(chain) == limit else [])
    drafts = mx.concatenate([choice.token for choice in chain])
    return Draft(drafts, [choice.logprobs for choice in chain])
