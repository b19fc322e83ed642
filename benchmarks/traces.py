"""Records, for every position of many texts, how many drafts would have been right there.

`python -m benchmarks.traces --output benchmarks/data/traces.jsonl` writes one JSON object a
request. Entry `i - 1` of a proposer's lists belongs to the state in which `i` tokens of the
output have been emitted: `right` counts the leading drafts that equal what comes next, and
`confidence` holds the drafter's own probability of each of its drafts. Near the end of the
output `right` is at most the number of tokens left. With `--others` it records as many requests
that no constant of a strategy was chosen on.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, TypedDict, cast, final

import attrs
import mlx.core as mx

import speculate as sp
from benchmarks.workloads import Request, workloads
from speculate import SpeculativeModel
from speculate.protocols import Commit, DraftToken, Proposer, Rollbackable, Verdict

DEPTH: Final = 8


class Guesses(TypedDict):
    """A proposer's part of a line."""

    right: list[int]
    confidence: list[list[float]]


class Trace(TypedDict):
    """A line, without the names of its workload and request."""

    prompt: list[int]
    output: list[int]
    depth: int
    proposers: dict[str, Guesses]


@final
@attrs.define
class Chances:
    """Picks the likeliest token, and remembers how likely it was."""

    found: list[mx.array] = attrs.field(factory=list)

    def choose(self, logits: mx.array, index: int) -> DraftToken:
        """Greedy; see `DraftSampler`."""
        token = mx.argmax(logits, axis=-1)
        self.found.append(mx.softmax(logits, axis=-1).max(axis=-1))
        return DraftToken(token)


@final
@attrs.define
class Record:
    """What one proposer guessed at each position of one text."""

    proposer: Proposer
    drafts: list[list[int]] = attrs.field(factory=list)
    confidence: list[list[float]] = attrs.field(factory=list)

    def guess(self, last_token: mx.array) -> None:
        """Ask for drafts after `last_token`."""
        chances = Chances()
        draft = self.proposer.propose(last_token, DEPTH, chances.choose)
        self.drafts.append(cast("list[int]", draft.tokens.tolist()))
        found = cast("list[float]", mx.concatenate(chances.found).tolist())
        self.confidence.append([round(chance, 3) for chance in found])

    def right(self, output: Sequence[int]) -> list[int]:
        """Leading right drafts at each position of `output`."""
        return [_leading(d, output[i:]) for i, d in enumerate(self.drafts, start=1)]


@final
class Speaker:
    """The target, fed token by token, with proposers that watch.

    Args:
        target: The model.
        prompt: Ids to start with.
        records: Who is asked at each position, and told of every token.
    """

    def __init__(
        self, target: SpeculativeModel, prompt: Sequence[int], records: Sequence[Record]
    ) -> None:
        self._target = target
        self._records = records
        self._cache: list[Rollbackable] = target.make_cache()
        for record in records:
            record.proposer.attach(target)
            record.proposer.begin(0)
        self._logits = self._feed(mx.array(list(prompt)), guessed=False)

    def say(self, token: int | None) -> int:
        """Emit a token, the likeliest one where none is given, and let all guess what follows."""
        said = self._likeliest() if token is None else token
        last_token = mx.array([said])
        for record in self._records:
            record.guess(last_token)
        self._logits = self._feed(last_token, guessed=True)
        return said

    def _likeliest(self) -> int:
        """End of text left out: each output is as long as its request says."""
        ends = mx.array(sorted(self._target.eos_token_ids))
        return cast(
            int, mx.argmax(mx.put_along_axis(self._logits, ends, mx.array(-1e9), -1)).item()
        )

    def _feed(self, tokens: mx.array, *, guessed: bool) -> mx.array:
        out = self._target.forward(tokens[None], self._cache)
        for record in self._records:
            verdict = Verdict(record.proposer.name, DEPTH, 0) if guessed else None
            record.proposer.commit(Commit(tokens, out.hidden, verdict))
        mx.eval(out.logits, [cache.arrays() for cache in self._cache])
        return out.logits[0, -1]


def speak(target: SpeculativeModel, request: Request, records: Sequence[Record] = ()) -> list[int]:
    """The output of a request: what is forced, and greedy text in between."""
    speaker = Speaker(target, request.prompt, records)
    wanted: list[int | None] = []
    for piece in request.pieces:
        wanted += [*piece.forced, *[None] * piece.free]
    return [speaker.say(token) for token in wanted[: request.length]]


def trace(target: SpeculativeModel, draft: SpeculativeModel, request: Request) -> Trace:
    """What the head and the draft model would have guessed along a request's output."""
    records = [Record(sp.MTPChain()), Record(sp.DraftModel(draft))]
    output = speak(target, request, records)
    return {
        "prompt": list(request.prompt),
        "output": output,
        "depth": DEPTH,
        "proposers": {
            record.proposer.name: {
                "right": record.right(output)[:-1],
                "confidence": record.confidence[:-1],
            }
            for record in records
        },
    }


def survival(rights: Iterable[Sequence[int]]) -> list[float]:
    """How often the first 1, 2, ... drafts were all right, where so many were left to guess."""
    counts = [count for right in rights for count in right[:-DEPTH]]
    return [sum(count >= d for count in counts) / len(counts) for d in range(1, DEPTH + 1)]


def _leading(drafts: Iterable[int], text: Sequence[int]) -> int:
    count = 0
    for draft, token in zip(drafts, text, strict=False):
        if draft != token:
            break
        count += 1
    return count


def _print_survival(name: str, lines: Iterable[Trace]) -> None:
    rights: dict[str, list[list[int]]] = {}
    for line in lines:
        for proposer, guesses in line["proposers"].items():
            rights.setdefault(proposer, []).append(guesses["right"])
    for proposer, counts in rights.items():
        shares = (f"{share:.3f}" for share in survival(counts))
        print(f"{name:12} {proposer:6}", *shares, flush=True)


def main() -> None:
    """Write the file, and print how far drafts survive in each workload."""
    parser = argparse.ArgumentParser(description="Record acceptance traces.")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument(
        "--others", action="store_true", help="requests that no constant was chosen on"
    )
    given = parser.parse_args()
    path: Path = given.output
    target, tokenizer = sp.load_demo("hybrid")
    draft, _ = sp.load_demo("draft")
    with path.open("w", encoding="utf-8") as file:
        for name, requests in workloads(tokenizer, others=given.others).items():
            lines = [trace(target, draft, request) for request in requests]
            for index, line in enumerate(lines):
                full = {"workload": name, "request": index, **line}
                file.write(json.dumps(full, separators=(",", ":")) + "\n")
            _print_survival(name, lines)


if __name__ == "__main__":
    main()
