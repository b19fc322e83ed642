"""One token too many or too few, in either way of taking a recurrence back: who notices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import mlx.core as mx
import pytest

from speculate.models.every_state import EveryState
from speculate.models.folded_replay import FoldedReplay
from speculate.models.recurrence import Start
from speculate.strategies.fixed import Fixed
from tests.backends.checks import (
    check_hand_back,
    check_kept_prefixes,
    check_partial_rewinds,
    check_rounds,
    check_tail_independence,
)
from tests.backends.driving import ids, model
from tests.decoding import kit

Patch = pytest.MonkeyPatch
Fault = Callable[[Patch], None]


def picked_state_is_off_by(tokens: int) -> Fault:
    def plant(patch: Patch) -> None:
        after = EveryState.after

        def wrong(self: EveryState, m: int, /) -> mx.array:
            return after(self, min(max(1, m + tokens), len(self.states)))

        patch.setattr(EveryState, "after", wrong)

    return plant


def folded_rows_are_off_by(tokens: int) -> Fault:
    def plant(patch: Patch) -> None:
        resume = FoldedReplay.resume
        patch.setattr(FoldedReplay, "resume", lambda self, m: resume(self, m + tokens))

    return plant


def replayed_rows_are_off_by(tokens: int) -> Fault:
    def plant(patch: Patch) -> None:
        after = FoldedReplay.after
        patch.setattr(FoldedReplay, "after", lambda self, m: after(self, max(1, m + tokens)))

    return plant


def the_fold_before_is_forgotten(patch: Patch) -> None:
    """What stayed of the block before the last rejected one."""

    def wrong(self: FoldedReplay, m: int, /) -> Start:
        own = self.inputs.first(self.folded + m)
        behind = [part[:, self.folded :] for part in (own.qkv, own.a, own.b)]
        return Start(self.before, type(own)(*behind))

    patch.setattr(FoldedReplay, "resume", wrong)


def rounds(name: str) -> None:
    """Logits of every round, which rejects."""
    check_rounds(model(name), ids(60), 12, [(3, n) for n in (1, 0, 2, 1, 1)], probe=False)


def next_logits(name: str) -> None:
    """Logits after every round, as a cold prefill gives them."""
    check_rounds(model(name), ids(60), 12, [(3, n) for n in (1, 0, 2)])


def kept_prefixes(name: str) -> None:
    """Logits behind every prefix of a block."""
    check_kept_prefixes(model(name), 12, [4])


def tails(name: str) -> None:
    """What the caches hold after every cut."""
    check_tail_independence(model(name), 12, [4])


def partial_rewinds(name: str) -> None:
    """One block cut again and again."""
    check_partial_rewinds(model(name))


def hand_back(name: str) -> None:
    """What mlx-lm is handed after a rejection."""
    check_hand_back(model(name), 12, 3)


def decoding(name: str) -> None:
    """Scores of every token, where every draft is wrong somewhere."""
    proposer = kit.scripted(name, kit.PROMPT, 12, lambda n: (1, 2, 0)[n % 3])
    kit.check_tokens(name, kit.PROMPT, kit.decode(name, Fixed(proposer, 3), count=12))


Check = Callable[[str], None]
GOING_ON: Final[tuple[Check, ...]] = (rounds, next_logits, kept_prefixes, decoding)
READING: Final[tuple[Check, ...]] = (tails, partial_rewinds, hand_back)

PLANTED: Final[list[tuple[str, str, Fault, tuple[Check, ...]]]] = [
    ("ops, +1", "qwen3_5", picked_state_is_off_by(1), (*GOING_ON, *READING)),
    ("ops, -1", "qwen3_5", picked_state_is_off_by(-1), (*GOING_ON, *READING)),
    ("folded, +1", "qwen3_5_folded", folded_rows_are_off_by(1), GOING_ON),
    ("folded, -1", "qwen3_5_folded", folded_rows_are_off_by(-1), GOING_ON),
    ("folded, earlier fold", "qwen3_5_folded", the_fold_before_is_forgotten, (rounds, decoding)),
    ("carried out, +1", "qwen3_5_folded", replayed_rows_are_off_by(1), READING),
    ("carried out, -1", "qwen3_5_folded", replayed_rows_are_off_by(-1), READING),
]


@pytest.mark.parametrize(
    ("name", "fault", "check"),
    [
        pytest.param(name, fault, check, id=f"{title}-{check.__name__}")
        for title, name, fault, checks in PLANTED
        for check in checks
    ],
)
def test_a_token_more_or_less_is_noticed(name: str, fault: Fault, check: Check) -> None:
    check(name)
    with pytest.MonkeyPatch.context() as patch:
        fault(patch)
        with pytest.raises(AssertionError):
            check(name)
