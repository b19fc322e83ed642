"""Whether a round costs what its parts cost: measured speedup over that of the formula.

    python -m benchmarks.efficiency

    speedup(k) = (1 + S_1 + ... + S_k) / (v(k + 1) + c_1 + ... + c_k)

`S`, `v` and `c` come from the same run as the speedup that is measured. Plain decoding, drafts of
the head and of a draft model at depths 1 to 5, and all their parts take turns, one round each.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, final

import attrs

import speculate as sp
from benchmarks import picture, report
from benchmarks.contestants import ours, stock_plain
from benchmarks.grow import HYBRIDS, grown_hybrid
from benchmarks.pair import Pair, grown_pair_draft
from benchmarks.prompts import prompts
from benchmarks.rates import draft_chain, forwards, head_chain, prefilled, prefilled_head
from benchmarks.spread import Spread
from benchmarks.turns import Task, Turn, rounds, take_turns
from speculate import SpeculativeModel

DEPTHS: Final = (1, 2, 3, 4, 5)
PROPOSERS: Final = ("mtp", "draft")
PROMPT: Final = 96
PROMPTS: Final = 3
"""Of each kind: code and prose. A prompt is a repeat."""
TURNS: Final = 5
GOAL: Final = 0.97

Times = Mapping[str, Sequence[Turn]]


def plain(model: SpeculativeModel, prompt: Sequence[int]) -> Task:
    """mlx-lm's own decoding, two tokens a turn."""
    return rounds((False for _ in stock_plain(model)(prompt)), 2)


def drafted(pair: Pair, name: str, depth: int, prompt: Sequence[int]) -> Task:
    """Our rounds with a fixed depth."""
    way = ours(pair.target, lambda: sp.Fixed(pair.proposer(name), depth))
    return rounds(from_draft for _, from_draft in way(prompt))


def tasks(pair: Pair, prompt: Sequence[int]) -> dict[str, Task]:
    """Everything that takes turns behind a prompt."""
    caches, hidden = prefilled(pair.target, prompt)
    heads = prefilled_head(pair.head, hidden, prompt)
    drafts, _ = prefilled(pair.draft, prompt)
    found = {"plain": plain(pair.target, prompt)}
    for depth in DEPTHS:
        for name in PROPOSERS:
            found[f"{name} {depth}"] = drafted(pair, name, depth, prompt)
        last_token = hidden[:, -1:]
        found[f"mtp chain {depth}"] = head_chain(pair.head, heads, last_token, prompt, depth)
        found[f"draft chain {depth}"] = draft_chain(pair.draft, drafts, prompt, 1, depth)
    for rows in range(1, DEPTHS[-1] + 2):
        found[f"forward {rows}"] = forwards(pair.target, caches, prompt, rows)
        some = hidden[:, -rows:]
        found[f"mtp rows {rows}"] = head_chain(pair.head, heads, some, prompt, 1)
    for rows in (1, 2):
        found[f"draft rows {rows}"] = draft_chain(pair.draft, drafts, prompt, rows, 1)
    return found


@final
@attrs.frozen
class Found:
    """One proposer at one depth behind one prompt.

    Attributes:
        tokens: That a round gave, on average: `1 + S_1 + ... + S_k`.
        round: Time of a round, in plain steps.
        parts: `v(k + 1) + c_1 + ... + c_k`, in forwards of one row.
    """

    tokens: float
    round: float
    parts: float

    @property
    def speedup(self) -> float:
        return self.tokens / self.round

    @property
    def formula(self) -> float:
        return self.tokens / self.parts

    @property
    def efficiency(self) -> float:
        return self.parts / self.round


def found_of(times: Times, name: str, depth: int) -> Found:
    """What came out behind one prompt."""
    turns = times[f"{name} {depth}"]
    one = seconds(times["forward 1"])
    caught_up = statistics.fmean(_first_step(times, name, turn, depth) for turn in turns)
    chain = seconds(times[f"{name} chain {depth}"]) + caught_up
    return Found(
        tokens=statistics.fmean(turn.tokens for turn in turns),
        round=seconds(turns) / (seconds(times["plain"]) / 2),
        parts=(seconds(times[f"forward {depth + 1}"]) + chain) / one,
    )


def _first_step(times: Times, name: str, before: Turn, depth: int) -> float:
    """What catching up adds to a draft's first step, behind a round that gave so much."""
    caught = min(before.tokens, 1 + (before.tokens == depth + 1)) if name == "draft" else None
    rows = before.tokens if caught is None else caught
    return seconds(times[f"{name} rows {rows}"]) - seconds(times[f"{name} rows 1"])


def seconds(turns: Sequence[Turn]) -> float:
    """Median of a task's turns."""
    return statistics.median(turn.seconds for turn in turns)


def measure(pair: Pair, texts: Sequence[Sequence[int]], turns: int) -> dict[str, list[Found]]:
    """One repeat for each prompt, by proposer and depth."""
    found: dict[str, list[Found]] = {}
    for index, prompt in enumerate(texts):
        times = take_turns(tasks(pair, prompt), turns)
        for name in PROPOSERS:
            for depth in DEPTHS:
                found.setdefault(f"{name} {depth}", []).append(found_of(times, name, depth))
        report.progress(
            f"  prompt {index + 1} of {len(texts)}: {1e3 * seconds(times['forward 1']):.0f} ms"
        )
    return found


def rows_of(found: Mapping[str, Sequence[Found]]) -> Iterator[list[str]]:
    yield ["", "tokens a round", "speedup", "formula", "efficiency"]
    for name, repeats in found.items():
        yield [
            name,
            f"{statistics.fmean(one.tokens for one in repeats):.2f}",
            f"{Spread.of([one.speedup for one in repeats]).median:.2f}",
            f"{Spread.of([one.formula for one in repeats]).median:.2f}",
            str(efficiency(repeats)),
        ]


def efficiency(repeats: Sequence[Found]) -> Spread:
    """Over all prompts."""
    return Spread.of([one.efficiency for one in repeats])


def main() -> None:
    options = report.options(__doc__)
    sizes = HYBRIDS[2:] if options.quick else HYBRIDS[: options.some(2)]
    tables, data, panels = [], {}, []
    draft = grown_pair_draft()
    for hidden, layers in sizes:
        size = f"hidden {hidden}, {layers} layers"
        target, tokenizer = grown_hybrid(hidden, layers)
        count = options.some(PROMPTS)
        texts = [
            prompt
            for kind in ("code", "prose")
            for prompt in prompts(tokenizer, kind, PROMPT, count)
        ]
        report.progress(size)
        found = measure(Pair(target, draft), texts, options.some(TURNS, 2 if options.quick else 5))
        tables.append(report.Table(f"Harness efficiency, {size}", [*rows_of(found)]))
        data[size] = {
            name: [attrs.asdict(one) for one in repeats] for name, repeats in found.items()
        }
        lines = {
            name: {str(depth): efficiency(found[f"{name} {depth}"]) for depth in DEPTHS}
            for name in PROPOSERS
        }
        panels.append(picture.Panel(size, "drafts a round", "measured / formula", lines, goal=GOAL))
    report.save(options, "efficiency", tables, {"goal": GOAL, "sizes": data})
    picture.draw(panels, options.folder / "efficiency.png")


if __name__ == "__main__":
    main()
