"""For any distributions in a draft, the output has the target's, without filtered tokens."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Final, final

import attrs
import mlx.core as mx
import numpy as np
import pytest

from speculate import Decoder, Fixed, Off, Sampling
from speculate.protocols import Draft, DraftSampler, DraftToken, Verification
from speculate.sampling.acceptance import AcceptanceRule
from speculate.sampling.options import MODES, Mode
from tests.sampling.test_callables import START, TARGET, VOCAB, p_of_steps
from tests.support import biased_rules, reference
from tests.support.batched_sampling import RuleMaker, Setting, decode, rule_of
from tests.support.exact_distributions import CHANCE, Floats, distribution, joint, p_value
from tests.support.table_models import Drafting, TableModel, table, to_mx

BY_DISTRIBUTION: Final[tuple[Mode, ...]] = ("rejection", "block")
TEXTS: Final = 4000
NAN: Final = float("nan")

Break = Callable[[mx.array, mx.array], mx.array]
"""Replaces the distribution `(1, vocabulary)` of a drafted token `(1,)`."""


def ruled_out(distribution: mx.array, token: mx.array) -> mx.array:
    """Without the token, and the rest adds up to one."""
    others = mx.where(mx.arange(distribution.shape[-1]) == token, -mx.inf, distribution)
    return others - mx.logsumexp(others, axis=-1, keepdims=True)


def column(value: float) -> Break:
    """One number of the distribution is another."""
    return lambda distribution, _: mx.where(
        mx.arange(distribution.shape[-1]) == 2, value, distribution
    )


BROKEN: Final[dict[str, Break]] = {
    "not a number": lambda distribution, _: distribution * NAN,
    "one is not a number": column(NAN),
    "one is infinite": column(mx.inf),
    "nothing is possible": lambda distribution, _: mx.full(distribution.shape, -mx.inf),
    "half a distribution": lambda distribution, _: distribution - mx.log(mx.array(2.0)),
    "twice a distribution": lambda distribution, _: distribution + mx.log(mx.array(2.0)),
    "the token is impossible": ruled_out,
}


@final
class Saying:
    """Verifies drafts by a rule, after breaking their distributions.

    Args:
        rule: The rule.
        broken: Breaks a distribution.
        places: Which drafts of a block have a broken one.
    """

    def __init__(self, rule: AcceptanceRule, broken: Break, places: Sequence[int]) -> None:
        self._rule = rule
        self._broken = broken
        self._places = places

    def choose(self, logits: mx.array, position: int, /) -> DraftToken:
        return self._rule.choose(logits, position)

    def verify(self, logits: mx.array, positions: Sequence[int], draft: Draft, /) -> Verification:
        distributions = list(draft.logprobs)
        for place in self._places:
            one = distributions[place]
            assert one is not None
            distributions[place] = self._broken(one, draft.tokens[place : place + 1])
        return self._rule.verify(logits, positions, Draft(draft.tokens, distributions))


def saying(name: str, places: Sequence[int], rule: RuleMaker = rule_of) -> RuleMaker:
    return lambda sampling, seed: Saying(rule(sampling, seed), BROKEN[name], places)


def setting(mode: Mode, rule: RuleMaker, *, top_k: int = 2) -> Setting:
    return Setting(
        sampling=Sampling(temperature=0.9, mode=mode, top_k=top_k),
        depth=3,
        target=table(1, VOCAB),
        drafts=0.6 * table(1, VOCAB) + 0.6 * table(2, VOCAB),
        rule=rule,
    )


def p_of_texts(given: Setting) -> float:
    """How well the first two tokens of many texts fit the target's distribution."""
    return p_value(decode(given, TEXTS, 2).beginnings(2), joint(given.after, 2))


@pytest.mark.parametrize(
    ("name", "places"),
    [
        *((name, (0, 1, 2)) for name in BROKEN),
        ("not a number", (1,)),
        ("half a distribution", (1,)),
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", BY_DISTRIBUTION)
def test_a_draft_with_a_broken_distribution_leaves_the_target_s(
    mode: Mode, name: str, places: tuple[int, ...]
) -> None:
    given = setting(mode, saying(name, places))
    assert p_of_texts(given) > CHANCE
    found = decode(given, TEXTS)
    assert found.accepted.max() == places[0]


@pytest.mark.parametrize("mode", BY_DISTRIBUTION)
def test_what_comes_before_a_broken_draft_is_verified_as_a_block_of_its_own(
    mode: Mode,
) -> None:
    given = setting(mode, saying("not a number", (2,)))
    found = decode(given, TEXTS).round(0)
    assert p_value(found, attrs.evolve(given, depth=2).round_distribution()) > CHANCE


@pytest.mark.parametrize(
    "name", ["half a distribution", "twice a distribution", "the token is impossible"]
)
def test_a_rule_that_verifies_with_a_broken_distribution_is_refused(name: str) -> None:
    wrong = setting(
        "rejection", saying(name, (0, 1, 2), biased_rules.AnyDistributionIsBelieved), top_k=0
    )
    assert p_of_texts(wrong) < CHANCE


def test_a_rule_that_accepts_what_its_distribution_rules_out_is_refused() -> None:
    wrong = setting("rejection", saying("not a number", (0, 1, 2), biased_rules.PlainRejection))
    assert p_of_texts(wrong) < CHANCE


# By a decoder: ids that the target does not have, and distributions of other widths.


def sampled(
    columns: int, ids: Callable[[int], int], dtype: mx.Dtype = mx.int64
) -> Callable[[int, int, DraftSampler], Draft]:
    """Tokens drawn from distributions over so many columns, and named otherwise."""
    dice = random.Random(4)
    rows = np.stack([distribution(row, Sampling(temperature=1.0)) for row in table(3, columns)])

    def draft(last_token: int, limit: int, choose: DraftSampler) -> Draft:
        tokens: list[int] = []
        distributions: list[mx.array] = []
        for _ in range(limit):
            row = rows[last_token % columns]
            last_token = dice.choices(range(columns), row.tolist())[0]
            tokens.append(ids(last_token))
            distributions.append(mx.array(np.log(row[None]).astype(np.float32)))
        return Draft(mx.array(tokens, dtype=dtype), distributions)

    return draft


def chosen(ids: Callable[[mx.array], mx.array]) -> Callable[[int, int, DraftSampler], Draft]:
    """Tokens that `choose` picks, and named otherwise."""
    rows = to_mx(table(3, VOCAB))

    def draft(last_token: int, limit: int, choose: DraftSampler) -> Draft:
        choices = [choose(rows[last_token][None], index) for index in range(limit)]
        tokens = mx.concatenate([choice.token for choice in choices])
        return Draft(ids(tokens), [choice.logprobs for choice in choices])

    return draft


def unlucky(last_token: int, limit: int, choose: DraftSampler) -> Draft:
    """Drafts of a model whose every score is not a number."""
    choices = [choose(mx.full((1, VOCAB), NAN), index) for index in range(limit)]
    tokens = mx.concatenate([choice.token for choice in choices])
    return Draft(tokens, [choice.logprobs for choice in choices])


DRAFTS: Final[dict[str, Callable[[], Callable[[int, int, DraftSampler], Draft]]]] = {
    "as they are": lambda: sampled(VOCAB, lambda id_: id_),
    "fewer columns": lambda: sampled(VOCAB - 1, lambda id_: id_),
    "more columns": lambda: sampled(VOCAB + 3, lambda id_: id_, mx.int8),
    "behind the last": lambda: sampled(VOCAB, lambda id_: VOCAB + id_),
    "below the first": lambda: sampled(VOCAB, lambda id_: -1 - id_, mx.int32),
    "beyond 32 bits": lambda: sampled(VOCAB, lambda id_: 2**32 + (id_ + 1) % VOCAB),
    "beyond 63 bits": lambda: chosen(lambda ids: ids.astype(mx.uint64) - 5),
    "chosen, behind the last": lambda: chosen(lambda ids: ids + VOCAB),
    "not a number": lambda: unlucky,
    "certain, behind the last": lambda: lambda last_token, limit, _: Draft(mx.array([9] * limit)),
}


def text_of(
    mode: Mode | None, draft: Callable[[int, int, DraftSampler], Draft], count: int
) -> list[int]:
    """One long text; greedy without a mode."""
    sampling = Sampling() if mode is None else Sampling(temperature=0.9, seed=5, mode=mode)
    model = TableModel(to_mx(TARGET))
    return reference.ids_of(
        Decoder(model, Fixed(Drafting(draft), 2), sampling).generate([START], count)
    )


@pytest.mark.parametrize("name", DRAFTS)
@pytest.mark.parametrize("mode", BY_DISTRIBUTION)
def test_drafts_of_any_ids_and_widths_leave_the_target_s_distribution(
    mode: Mode, name: str
) -> None:
    p: Floats = np.stack([distribution(row, Sampling(temperature=0.9)) for row in TARGET])
    assert p_of_steps(text_of(mode, DRAFTS[name](), 500), p) > 1e-6


@pytest.mark.parametrize("name", DRAFTS)
@pytest.mark.parametrize("mode", [None, "coupled"])
def test_drafts_of_any_ids_and_widths_leave_the_same_text(mode: Mode | None, name: str) -> None:
    sampling = Sampling() if mode is None else Sampling(temperature=0.9, seed=5, mode=mode)
    plain = Decoder(TableModel(to_mx(TARGET)), Off(), sampling).generate([START], 60)
    assert text_of(mode, DRAFTS[name](), 60) == reference.ids_of(plain)


@pytest.mark.parametrize("mode", MODES)
def test_nothing_that_is_filtered_is_emitted_after_a_broken_draft(mode: Mode) -> None:
    sampling = Sampling(temperature=0.9, top_k=2, seed=1, mode=mode)
    decoder = Decoder(TableModel(to_mx(TARGET)), Fixed(Drafting(unlucky), 3), sampling)
    text = [START, *reference.ids_of(decoder.generate([START], 200))]
    best = np.argsort(-TARGET, axis=-1)[:, :2]
    assert all(token in best[last_token] for last_token, token in itertools.pairwise(text))
