"""`assert_lossless`: speculative decoding returns the tokens and logits of plain decoding."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Final, cast

import mlx.core as mx

from speculate._mx import log_softmax, row_differences
from speculate.decoding.block import Token
from speculate.decoding.decoder import Decoder
from speculate.protocols import Proposer, SpeculativeModel
from speculate.sampling.options import Sampling
from speculate.strategies.fixed import Off
from speculate.testing._model_harness import feed
from speculate.testing.contract import at_step, contract, require
from speculate.testing.fakes import RecordingObserver, ScheduledStrategy, ScriptedProposer

DEPTHS: Final = (4, 0, 1, 2, 7)
"""Tokens to draft, in random order."""

COLD: Final = "those of a cold prefill by the model itself"
"""How errors name the reference."""


@contract
def assert_lossless(
    model: SpeculativeModel,
    proposers: Sequence[Proposer] = (),
    *,
    prompts: Iterable[Sequence[int]] | None = None,
    tokens: int = 40,
    depths: Sequence[int] = DEPTHS,
    sampling: Sampling | None = None,
    tolerance: float = 0.0,
    seed: int = 0,
) -> None:
    """Decode with a random proposer in every round, and compare with plain decoding.

    A scripted proposer joins the given ones: it knows the output and is wrong in chosen places,
    so that a draft is rejected at every depth. The logits of every token are compared with
    those of a cold prefill, and so are the logits over the caches afterwards.

    Args:
        model: The target.
        proposers: Proposers to draft with.
        prompts: Token ids. By default random ones of 1 and of 9 tokens.
        tokens: Tokens to decode after each prompt: best more than two windows of the model.
        depths: Tokens to draft, in random order; 0 is a round without a draft.
        sampling: Greedy if omitted; otherwise mode "coupled" with a seed.
        tolerance: How far log-probabilities may be off, in units of the largest. Use 0 on the
            CPU. Elsewhere blocks and single rows may round differently, and the output may
            differ where two tokens are closer than this.
        seed: Of the random order of proposers and depths.

    Raises:
        ContractError: Names the first round and position that differ.
    """
    rng = random.Random(seed)
    if prompts is None:
        # One token, and just more than a window of 8.
        prompts = [rng.choices(range(model.vocab_size), k=count) for count in (1, 9)]
    for prompt in prompts:
        plain = [token.id for token in Decoder(model, Off(), sampling).generate(prompt, tokens)]
        scripted = ScriptedProposer(
            [*prompt, *plain],
            lambda draft: (None, 0, 1, 2, 3)[draft % 5],
            vocab_size=model.vocab_size,
            name="assert_lossless",
        )
        pool = [*proposers, scripted]
        plans = [(rng.choice(pool), rng.choice(depths)) for _ in range(tokens)]
        plans += [(proposer, 0) for proposer in pool]
        _compare(model, prompt, plain, plans, sampling, tolerance)


def _compare(
    model: SpeculativeModel,
    prompt: Sequence[int],
    plain: Sequence[int],
    plans: Sequence[tuple[Proposer, int]],
    sampling: Sampling | None,
    tolerance: float,
) -> None:
    """Decode one prompt with drafts, and compare tokens, logits and caches."""
    observer = RecordingObserver()
    caches: list[object] = [*model.make_cache()]
    decoder = Decoder(model, ScheduledStrategy(plans), sampling, observer=observer)
    found: list[Token] = []
    try:
        found.extend(decoder.generate(prompt, len(plain), caches))
    except Exception as error:
        with at_step(len(observer.rounds), len(prompt) + len(found)):
            raise error
    sequence = [*prompt, *(token.id for token in found)]
    # Row i of a cold prefill is the last row of a prefill of the first i + 1 tokens.
    cold = model.make_cache()
    expected = log_softmax(feed(model, sequence, cold))[len(prompt) - 1 :]
    limit = tolerance * cast(float, mx.abs(expected).max().item())
    differences = row_differences(mx.stack([token.logprobs for token in found]), expected[:-1])
    for index, token in enumerate(found):
        with at_step(observer.round_of(index), len(prompt) + index):
            off = differences[index]
            require(off <= limit, f"next logits are {off} from {COLD}")
            if token.id != plain[index]:
                row = expected[index]
                gap = cast(float, (row[plain[index]] - row[token.id]).item())
                near = sampling is None and abs(gap) <= limit
                said = f"token {token.id} instead of plain decoding's {plain[index]}, {gap} apart"
                require(near, said)
                return
    with at_step(len(observer.rounds), len(sequence)):
        left, reference = (feed(model, sequence[:1], held) for held in (model.adopt(caches), cold))
        (off,) = row_differences(left, reference)
        require(off <= limit, f"the caches afterwards give logits {off} from {COLD}")
