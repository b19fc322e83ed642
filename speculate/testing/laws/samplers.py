"""What a sampler must do: the laws of `Sampler`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final, cast

import mlx.core as mx

from speculate.protocols import Choice, Sampler
from speculate.testing.broken import BrokenLawError, at, law, require
from speculate.testing.chance import chi_square
from speculate.testing.drawing import (
    NO_LAWS,
    PROMPT,
    Drafter,
    Drawn,
    Table,
    certain,
    draw,
    drawn_from,
    mislabelled,
    nobody,
    wrong,
)

MakeSampler = Callable[[], Sampler]
"""A fresh sampler: the same one every time, seed included."""

DRAFTERS: Final[Mapping[str, Drafter]] = {
    "a lookup": certain,
    "one that is wrong": wrong,
    "a draft model": drawn_from(Table(2)),
}
DEPTHS: Final = (4, 0, 1, 2, 7)
UNLIKELY: Final = 1e-6
"""A right law is refused less often than this."""


@law
def a_round_without_drafts_gives_one_token(make: MakeSampler) -> None:
    """And so do rounds whose drafts all fall."""
    drawn = Drawn(make(), Table())
    for round in range(20):
        with at(round, len(drawn.text)):
            drawn.round(nobody(drawn, 0))
            require(len(drawn.text) == len(PROMPT) + round + 1, "gives more or less than one token")
            in_range = 0 <= drawn.text[-1] < drawn.table.vocab_size
            require(in_range, f"gives {drawn.text[-1]}, which is no id")


@law
def what_choose_gives_is_a_token_and_its_law(make: MakeSampler) -> None:
    """An id, and log-probabilities that add up to one, if any; the token is possible in them."""
    drawn = Drawn(make(), Table())
    for index in range(6):
        with at(0, len(PROMPT) + index):
            logits = drawn.table.rows(mx.array([index % 8]))
            choice = drawn.sampler.choose(logits, index)
            require(choice.token.shape == (1,), f"gives tokens {choice.token.shape}")
            if choice.law is not None:
                require(choice.law.shape == logits.shape, f"gives a law {choice.law.shape}")
                total = cast(float, mx.exp(choice.law).sum().item())
                require(abs(total - 1) < 1e-3, f"probabilities add up to {total}")
                own = cast(float, choice.law[0, choice.token[0]].item())
                require(own > -1e30, "draws a token that its law rules out")


@law
def the_text_does_not_depend_on_the_drafts(make: MakeSampler) -> None:
    """For samplers that promise the same text: whoever drafts, however much."""
    table, count = Table(), 60
    plain = draw(make(), table, count, nobody, (0,))
    for name, drafter in DRAFTERS.items():
        for depths in ((3,), DEPTHS):
            text = draw(make(), table, count, drafter, depths)
            if text != plain:
                place = next(i for i, (a, b) in enumerate(zip(text, plain, strict=True)) if a != b)
                raise BrokenLawError(
                    f"{text[place]} instead of {plain[place]} with {name}",
                    position=len(PROMPT) + place,
                )


@law
def laws_that_are_none_do_not_change_the_text(make: MakeSampler) -> None:
    """For samplers that promise the same text: whatever a draft says that it was drawn from."""
    table, count = Table(), 30
    plain = draw(make(), table, count, nobody, (0,))
    for name in NO_LAWS:
        text = draw(make(), table, count, mislabelled(DRAFTERS["a draft model"], name), DEPTHS)
        require(text == plain, f"{text} instead of {plain} where a law {name}")


@law
def laws_that_are_none_do_not_change_the_law(make: MakeSampler, count: int = 400) -> None:
    """For samplers that promise the same law.

    A draft whose law is not finite, does not add up to 1 or rules the draft out falls, and the
    token in its place has the target's own law.

    Args:
        make: Makes the sampler. Its law must depend on the newest token alone.
        count: Tokens of each text.
    """
    table = Table(1, vocab_size=4)
    expected = [_law(make(), table, token) for token in range(4)]
    for name in NO_LAWS:
        drafter = mislabelled(drawn_from(Table(2, vocab_size=4)), name)
        found = _chance(draw(make(), table, count, drafter, (1, 2)), expected)
        told = f"tokens come as often by a chance of {found:.1e} where a law {name}"
        require(found > UNLIKELY, told)


@law
def the_text_has_the_law_of_plain_decoding(make: MakeSampler, count: int = 600) -> None:
    """For samplers that promise the same law: tokens are as frequent as the target wants them.

    The law is what `choose` says of the target's own logits.

    Args:
        make: Makes the sampler. Its law must depend on the newest token alone.
        count: Tokens of each text.
    """
    table = Table(1, vocab_size=4)
    expected = [_law(make(), table, token) for token in range(4)]
    for name, drafter in {**DRAFTERS, "nobody": nobody}.items():
        if name == "a draft model":
            drafter = drawn_from(Table(2, vocab_size=4))
        text = draw(make(), table, count, drafter, (3, 1, 2))
        found = _chance(text, expected)
        require(found > UNLIKELY, f"with {name} tokens come as often by a chance of {found:.1e}")


def _law(sampler: Sampler, table: Table, newest: int) -> list[float]:
    drawn = Drawn(sampler, table)
    choice: Choice = drawn.sampler.choose(table.rows(mx.array([newest])), 0)
    if choice.law is None:
        raise BrokenLawError("choose gives no law, and so the text must not depend on drafts")
    return cast("list[float]", mx.exp(choice.law[0]).tolist())


def _chance(text: Sequence[int], expected: Sequence[Sequence[float]]) -> float:
    """Chance of the pairs of tokens in a text, given the law behind each token."""
    followers = Counter(pairwise(text))
    times = Counter(text[:-1])
    pairs = [
        (float(followers[a, b]), times[a] * probability)
        for a, one_law in enumerate(expected)
        for b, probability in enumerate(one_law)
    ]
    impossible = any(seen and not mean for seen, mean in pairs)
    return 0.0 if impossible else chi_square(pairs)


@law
def the_same_seed_gives_the_same_text(make: MakeSampler) -> None:
    """With the same drafts, twice in a row and at the same time."""
    table = Table()
    one, other = Drawn(make(), table), Drawn(make(), table)
    drafter = DRAFTERS["a draft model"]
    for round in range(20):
        with at(round, len(one.text)):
            depth = DEPTHS[round % 5]
            one.round(drafter(one, depth))
            other.round(drafter(other, depth))
            require(one.text == other.text, f"{one.text[-1]}, and then {other.text[-1]}")


@law
def right_drafts_stand(make: MakeSampler) -> None:
    """Of drafts that are exactly the target's own, drawn from its law, most are accepted.

    For samplers that look at nothing but the logits.
    """
    table = Table()
    drawn = Drawn(make(), table)
    drafter = drawn_from(table)
    for round in range(12):
        with at(round, len(drawn.text)):
            drawn.round(drafter(drawn, 3))
    share = drawn.accepted / drawn.drafted
    require(share > 0.9, f"accepts {share:.0%} of drafts that are the target's own")


@law
def random_numbers_are_left_alone(make: MakeSampler) -> None:
    """Noise comes from the seed and the position: nobody else's random numbers change."""
    mx.random.seed(5)
    before = [mx.array(state) for state in cast("list[mx.array]", mx.random.state)]
    draw(make(), Table(), 20, DRAFTERS["a draft model"], DEPTHS)
    after = cast("list[mx.array]", mx.random.state)
    same = all(bool(mx.array_equal(a, b)) for a, b in zip(before, after, strict=True))
    require(same, "draws from mx.random")
