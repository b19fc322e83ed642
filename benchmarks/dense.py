"""A dense target and a draft model: mlx-lm's speculative decoding beside ours.

    python -m benchmarks.dense

Drafts are always right: what is compared is what a round costs. At each depth mlx-lm's step, ours
of the same name and our decoder take turns, some rounds each. Whole texts show what `Adaptive`
makes of the same.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Final, final

import attrs

import speculate as sp
from benchmarks import contestants, picture, report
from benchmarks.grow import DENSE, grown_draft, parameter_count
from benchmarks.prompts import KINDS, prompts
from benchmarks.spread import Spread
from benchmarks.texts import Comparison, compare, measured, ratio
from benchmarks.turns import rounds, take_turns
from speculate import SpeculativeModel

DEPTHS: Final = (1, 2, 3, 4, 5)
PROMPT: Final = 96
PROMPTS: Final = 2
"""Of each kind."""
TURNS: Final = 10
ROUNDS: Final = {True: 2, False: 12}
"""Rounds of a turn, of the large target and of the small one."""
TOKENS: Final = 96
STOCK, SHAPED, OURS = "mlx-lm", "our step", "our decoder"
GOALS: Final = {True: 0.99, False: 1.05}
"""Tokens a second over mlx-lm's, of the large target and of the small one."""
LARGE: Final = 100_000_000


@final
@attrs.frozen
class Pair:
    """A target and who drafts for it."""

    target: SpeculativeModel
    draft: SpeculativeModel

    @property
    def is_large(self) -> bool:
        return parameter_count(self.target) > LARGE

    @property
    def title(self) -> str:
        return f"{parameter_count(self.target) / 1e6:.0f} M"

    def drafted(self, depth: int) -> contestants.Way:
        """Our decoder at a depth."""
        return contestants.ours(self.target, lambda: sp.Fixed(sp.DraftModel(self.draft), depth))

    def adaptive(self) -> contestants.Way:
        """Our decoder at whatever depth pays."""
        return contestants.ours(self.target, lambda: sp.Adaptive(sp.DraftModel(self.draft)))


Ratios = dict[str, dict[str, list[float]]]
"""Tokens a second over mlx-lm's: by who, by depth, one behind each prompt."""


def by_rounds(
    pair: Pair, texts: Sequence[Sequence[int]], depths: Sequence[int], turns: int
) -> Ratios:
    """What rounds cost at each depth."""
    found: Ratios = {SHAPED: {}, OURS: {}}
    for depth in depths:
        ways = {
            STOCK: contestants.stock_drafted(pair.target, pair.draft, depth),
            SHAPED: contestants.shaped_drafted(pair.target, pair.draft, depth),
            OURS: pair.drafted(depth),
        }
        for prompt in texts:
            tasks = {
                name: rounds((draft for _, draft in way(prompt)), ROUNDS[pair.is_large])
                for name, way in ways.items()
            }
            times = take_turns(tasks, turns)
            rates = {
                name: statistics.median(turn.tokens / turn.seconds for turn in done)
                for name, done in times.items()
            }
            for name, of in found.items():
                of.setdefault(str(depth), []).append(rates[name] / rates[STOCK])
        report.progress(f"  depth {depth}")
    return found


def by_texts(pair: Pair, texts: Sequence[Sequence[int]], tokens: int) -> Comparison:
    """What whole texts take, at fixed depths and at whatever pays."""
    ways = {STOCK: contestants.stock_plain(pair.target), "adaptive": pair.adaptive()}
    ways |= {f"depth {depth}": pair.drafted(depth) for depth in DEPTHS}
    return compare(measured(ways), texts, tokens, turns=1)


def rounds_table(pair: Pair, found: Ratios) -> report.Table:
    depths = list(found[OURS])
    rows = [["over mlx-lm's tokens a second", *(f"depth {depth}" for depth in depths), "all"]]
    for name, of in found.items():
        everything = [one for depth in of.values() for one in depth]
        rows.append([name, *(str(Spread.of(of[d])) for d in depths), str(Spread.of(everything))])
    return report.Table(f"Rounds, target of {pair.title}", rows)


def texts_table(pair: Pair, found: dict[str, Comparison]) -> report.Table:
    fixed = [f"depth {depth}" for depth in DEPTHS]
    rows = [["", *fixed, "adaptive", "adaptive / best depth"]]
    for kind, comparison in found.items():
        rates = comparison.rates
        speedups = {name: ratio(rates, name, STOCK).median for name in [*fixed, "adaptive"]}
        best = max(fixed, key=lambda name: speedups[name])
        over = ratio(rates, "adaptive", best)
        rows.append([kind, *(f"{speedup:.2f}" for speedup in speedups.values()), str(over)])
    return report.Table(f"Whole texts over mlx-lm's plain decoding, target of {pair.title}", rows)


def main() -> None:
    options = report.options(__doc__)
    draft, tokenizer = sp.load_demo("draft")
    count = options.some(PROMPTS)
    texts = {kind: prompts(tokenizer, kind, PROMPT, count) for kind in KINDS}
    tables, panels, data = [], [], dict[str, object]()
    for size in DENSE[1:] if options.quick else DENSE:
        pair = Pair(grown_draft(*size)[0], draft)
        report.progress(f"target of {pair.title}")
        mixed = [prompt for kind in KINDS for prompt in texts[kind]]
        depths = DEPTHS[::2] if options.short else DEPTHS
        found = by_rounds(pair, mixed, depths, options.some(TURNS, 2 if options.quick else 5))
        tables.append(rounds_table(pair, found))
        # Other work on the machine disturbs what `Adaptive` measures.
        kinds = () if options.short else KINDS
        tokens = options.some(TOKENS, 48)
        whole = {kind: by_texts(pair, texts[kind], tokens) for kind in kinds}
        tables += [texts_table(pair, whole)] if whole else []
        data[pair.title] = {"over mlx-lm": found, "whole texts": whole}
        lines = {
            name: {depth: Spread.of(values) for depth, values in of.items()}
            for name, of in found.items()
        }
        title, up = f"target of {pair.title}", "tokens a second / mlx-lm's"
        goal = GOALS[pair.is_large]
        panels.append(picture.Panel(title, "drafts a round", up, lines, goal=goal))
    report.save(options, "dense", tables, data)
    picture.draw(panels, options.folder / "dense.png")


if __name__ == "__main__":
    main()
