"""Recorded requests: how many drafts would have been right at every place of a text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Final, cast, final

import attrs
import mlx.core as mx

import speculate as sp
from benchmarks.strategy.machine import DEEPEST
from speculate.protocols import Commit, DraftToken, Verdict

TRACES: Final = Path(__file__).parents[1] / "data" / "traces.jsonl"


@final
@attrs.frozen
class Recording:
    """One request. At place `i` the last token is `output[i]`.

    Attributes:
        workload: Its name.
        request: Its number in the workload.
        prompt: Ids.
        output: Ids.
        right: Proposer -> leading drafts that are right, at each place but the last.
        length: Proposer -> most tokens that it drafts there.
    """

    workload: str
    request: int
    prompt: Sequence[int]
    output: Sequence[int]
    right: Mapping[str, Sequence[int]]
    length: Mapping[str, Sequence[int]]


def recordings(path: Path = TRACES) -> list[Recording]:
    """All recorded requests, with what a lookup would have drafted."""
    return [_recording(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _recording(line: str) -> Recording:
    fields = json.loads(line)
    prompt, output = fields["prompt"], fields["output"]
    right = {name: guesses["right"] for name, guesses in fields["proposers"].items()}
    length = {name: [fields["depth"]] * len(right[name]) for name in right}
    drafts = _lookups(prompt, output)
    right["lookup"] = [_leading(draft, output[place:]) for place, draft in enumerate(drafts, 1)]
    length["lookup"] = [len(draft) for draft in drafts]
    return Recording(fields["workload"], fields["request"], prompt, output, right, length)


def _lookups(prompt: Sequence[int], output: Sequence[int]) -> list[list[int]]:
    """What `PromptLookup` drafts at each place."""
    lookup = sp.PromptLookup()
    lookup.begin(0)
    lookup.commit(committed(prompt, output[0]))
    drafts = []
    for token, after in pairwise(output):
        tokens = lookup.propose(mx.array([token]), DEEPEST, _never).tokens
        drafts.append(cast("list[int]", tokens.tolist()))
        lookup.commit(committed([token], after))
    return drafts


def committed(ids: Sequence[int], last_token: int | None, verdict: Verdict | None = None) -> Commit:
    """A commit for proposers that look at ids alone."""
    nothing = mx.zeros((0,))
    return Commit(nothing, nothing, verdict, ids=ids, bonus=last_token)


def _leading(draft: Sequence[int], text: Sequence[int]) -> int:
    pairs = zip(draft, text, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _never(logits: mx.array, index: int, /) -> DraftToken:
    raise NotImplementedError("a lookup has no logits")
