"""The promise as a whole: whoever drafts, text and scores are those of plain decoding."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Final, cast

import mlx.core as mx

from speculate.decoding.block import Token
from speculate.decoding.decoder import Decoder
from speculate.protocols import Proposer, SpeculativeModel
from speculate.sampling.options import Sampling
from speculate.strategies.fixed import Off
from speculate.testing.broken import at, law, require
from speculate.testing.driving import distances, feed, logprobs
from speculate.testing.fakes import RecordingObserver, ScheduledStrategy, ScriptedProposer

DEPTHS: Final = (4, 0, 1, 2, 7)
PROMPTS: Final = (1, 9)
"""Tokens of the prompts that are made up: alone, and just beyond a window of 8."""

WRONG: Final = (None, 0, 1, 2, 3)
"""Which draft of a block is wrong, in turn."""

COLD: Final = "those of a cold prefill by the model itself"


@law
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
    """Decode with somebody else drafting in every round, and compare with plain decoding.

    Besides the given proposers one drafts that knows the text and is wrong in chosen places,
    so that whatever can be rejected is. The next logits of every round are compared with those
    of a cold prefill of the committed text, and so is what the caches hold in the end.

    Args:
        model: The target.
        proposers: Who drafts.
        prompts: Ids. By default random ones of 1 and of 9 tokens.
        tokens: To decode after each. Take more than two windows of the model.
        depths: Of the drafts, in random order; 0 is a round without one.
        sampling: Greedy, or mode "coupled" with a seed.
        tolerance: How far apart log-probabilities may be, in units of the largest. 0 is right
            on the CPU; elsewhere blocks and single rows may round differently, and where two
            tokens are closer than this the text may part.
        seed: Of the order in which everybody drafts.

    Raises:
        BrokenLawError: Names the round and the position in the text that are wrong.
    """
    dice = random.Random(seed)
    texts = [_made_up(model, count, dice) for count in PROMPTS] if prompts is None else prompts
    for prompt in texts:
        plain = _ids(Decoder(model, Off(), sampling).generate(prompt, tokens))
        scripted = ScriptedProposer(
            [*prompt, *plain],
            lambda draft: WRONG[draft % 5],
            vocab_size=model.vocab_size,
            name="assert_lossless",
        )
        everyone = [*proposers, scripted]
        plans = [(dice.choice(everyone), dice.choice(depths)) for _ in range(tokens)]
        plans += [(proposer, 0) for proposer in everyone]
        _compare(model, prompt, plain, plans, sampling, tolerance)


def _made_up(model: SpeculativeModel, count: int, dice: random.Random) -> list[int]:
    return [dice.randrange(model.vocab_size) for _ in range(count)]


def _ids(tokens: Iterable[Token]) -> list[int]:
    return [token.id for token in tokens]


def _compare(
    model: SpeculativeModel,
    prompt: Sequence[int],
    plain: Sequence[int],
    plans: Sequence[tuple[Proposer, int]],
    sampling: Sampling | None,
    tolerance: float,
) -> None:
    """One text with drafts, its scores, and what it leaves in the caches."""
    observer = RecordingObserver()
    caches: list[object] = [*model.make_cache()]
    decoder = Decoder(model, ScheduledStrategy(plans), sampling, observer=observer)
    found: list[Token] = []
    try:
        found.extend(decoder.generate(prompt, len(plain), caches))
    except Exception as error:
        with at(len(observer.rounds), len(prompt) + len(found)):
            raise error
    text = [*prompt, *_ids(found)]
    # Row i of a cold prefill is what a prefill of the first i + 1 tokens alone gives last.
    cold = model.make_cache()
    scores = logprobs(feed(model, text, cold))[len(prompt) - 1 :]
    largest = tolerance * cast(float, mx.abs(scores).max().item())
    apart = distances(mx.stack([token.logprobs for token in found]), scores[:-1])
    for index, token in enumerate(found):
        with at(observer.round_of(index), len(prompt) + index):
            require(
                apart[index] <= largest,
                f"next logits are {apart[index]} from {COLD}",
            )
            if token.id != plain[index]:
                gap = cast(float, (scores[index][plain[index]] - scores[index][token.id]).item())
                near = sampling is None and abs(gap) <= largest
                said = f"token {token.id} instead of plain decoding's {plain[index]}, {gap} apart"
                require(near, said)
                return
    with at(len(observer.rounds), len(text)):
        left, expected = (feed(model, text[:1], held) for held in (model.adopt(caches), cold))
        (off,) = distances(left, expected)
        require(off <= largest, f"the caches left behind give logits {off} from {COLD}")
