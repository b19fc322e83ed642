"""What a proposer ought to have drafted: a function of the text alone."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from speculate._mx import to_ints
from speculate.sampling.acceptance import most_likely
from tests.support import reference
from tests.support.recording import WatchedProposer


def check_draft_model(draft: str, text: Sequence[int], watched: WatchedProposer) -> None:
    """Every draft is what the model says after a cold prefill of the text so far."""
    assert watched.drafts
    for length, last_token, ids in watched.drafts:
        assert [*text[:length], last_token] == list(text[: length + 1])
        # Right where each token is what the text and the draft before it call for.
        seen = [*text[: length + 1], *ids[:-1]]
        logits = reference.cold(draft, tuple(seen))[0][length:]
        assert ids == to_ints(most_likely(logits))


def ideal_of_head(
    name: reference.Tiny, text: Sequence[int], last_token: int, depth: int
) -> list[int]:
    """What a head chains after a sequence that it is fed at once."""
    model = name.model
    assert model.head is not None
    hidden = model.forward(mx.array([text]), model.make_cache()).hidden
    tokens = mx.array([[*text[1:], last_token]])
    cache = model.head.make_cache()
    ids: list[int] = []
    while len(ids) < depth:
        out = model.head.step(hidden, tokens, cache)
        ids += to_ints(most_likely(out.logits[:, -1]))
        hidden, tokens = out.hidden[:, -1:], mx.array([[ids[-1]]])
    return ids


def check_head(tiny: reference.Tiny, text: Sequence[int], watched: WatchedProposer) -> None:
    """Every draft is what the head chains to after it took in the whole text at once."""
    assert watched.drafts
    for length, last_token, ids in watched.drafts:
        if length:
            assert ids == ideal_of_head(tiny, text[:length], last_token, len(ids))
        else:
            assert ids == []
