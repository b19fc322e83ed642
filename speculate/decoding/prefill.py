"""Taking in the prompt: chunk by chunk, all but its last token."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from speculate.decoding.quantizing import Quantizer
from speculate.decoding.setup import Setup
from speculate.protocols import Commit, Rollbackable


def prefill(
    setup: Setup, caches: list[Rollbackable], quantizer: Quantizer, prompt: Sequence[int]
) -> None:
    """Feed all tokens of `prompt` but the last, in mlx-lm's chunks, and record nothing."""
    setup.report(0, len(prompt))
    last = len(prompt) - 1
    for start in range(0, last, setup.prefill_step_size):
        stop = min(start + setup.prefill_step_size, last)
        ids = list(prompt[start:stop])
        chunk = mx.array(ids, dtype=mx.uint32)
        out = setup.model.forward(chunk[None], caches)
        quantizer.apply()
        setup.drafting.tell(Commit(chunk, out.hidden, ids=ids))
        mx.eval([cache.arrays() for cache in caches])
        setup.report(stop, len(prompt))
        mx.clear_cache()
    quantizer.check()
