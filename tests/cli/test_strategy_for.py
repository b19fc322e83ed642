"""What decodes, by the names on the command line."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import speculate as sp
from speculate.cli._models import strategy_for
from speculate.errors import OptionError


def names(strategy: object) -> list[str]:
    assert isinstance(strategy, sp.Adaptive | sp.Fixed | sp.Off)
    return [proposer.name for proposer in strategy.proposers]


@pytest.mark.parametrize(
    ("head", "draft", "asked", "depth", "kind", "found"),
    [
        (True, True, None, None, sp.Adaptive, ["draft", "mtp", "lookup"]),
        (True, False, None, None, sp.Adaptive, ["mtp", "lookup"]),
        (False, True, None, None, sp.Adaptive, ["draft", "lookup"]),
        (False, False, None, None, sp.Adaptive, ["lookup"]),
        (True, True, None, 2, sp.Fixed, ["draft"]),
        (True, False, None, 2, sp.Fixed, ["mtp"]),
        (False, False, None, 2, sp.Fixed, ["lookup"]),
        (True, True, ["mtp"], None, sp.Adaptive, ["mtp"]),
        (True, True, ["lookup"], 2, sp.Fixed, ["lookup"]),
        (True, True, ["lookup", "mtp", "lookup"], None, sp.Adaptive, ["lookup", "mtp"]),
        (True, True, ["off"], None, sp.Off, []),
        (True, True, ["off"], 2, sp.Off, []),
    ],
)
def test_who_decides_and_who_drafts(
    head: bool,
    draft: bool,
    asked: Sequence[str] | None,
    depth: int | None,
    kind: type[object],
    found: list[str],
) -> None:
    model, _ = sp.load_demo("hybrid") if head else sp.load(head=False)
    other = sp.load_demo("draft")[0] if draft else None
    strategy = strategy_for(model, asked, depth, other)
    assert type(strategy) is kind
    assert names(strategy) == found
    if depth is not None and asked != ["off"]:
        assert strategy.plan(None).depth == depth


@pytest.mark.parametrize(
    ("asked", "depth", "reason"),
    [
        (["off", "mtp"], None, "cannot be combined with other"),
        (["lookup", "mtp"], 1, "is for one proposer"),
        (["mtp"], None, "no multi-token-prediction head"),
        (["lookup", "draft"], None, "needs a --draft-model"),
    ],
)
def test_what_does_not_go_together(asked: list[str], depth: int | None, reason: str) -> None:
    model, _ = sp.load(head=False)
    with pytest.raises(OptionError, match=reason):
        strategy_for(model, asked, depth, None)
