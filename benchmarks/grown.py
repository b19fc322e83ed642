"""What each way of drafting brings on the grown bundled models, for code and prose.

    python -m benchmarks.grown

Behind 256 tokens whole texts are decoded in every way, every other one in the opposite order.
Behind 2048 and 8192 tokens of code all fixed ways take turns within one text, and mlx-lm's own
decoding goes on from a copy of its cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import speculate as sp
from benchmarks import contestants, picture, report
from benchmarks.contestants import Way
from benchmarks.grow import HYBRIDS, grown_hybrid
from benchmarks.long_prompts import AfterPrompt, decode_after
from benchmarks.pair import Pair, grown_pair_draft
from benchmarks.prompts import KINDS, prompts
from benchmarks.texts import Comparison, compare, measured, ratio
from speculate.protocols import Strategy

DEPTHS: Final = (1, 2, 3, 4, 5)
CONTEXT: Final = 256
FAR: Final = (2048, 8192)
PROMPTS: Final = {1024: 2, 2048: 1, 768: 1}
"""Of each kind, by the model's width."""
TOKENS: Final = 64
TURNS: Final = 4
STOCK, OFF, ADAPTIVE, ALL = "mlx-lm", "off", "adaptive (default)", "adaptive (all three)"


def ways(pair: Pair) -> dict[str, Way]:
    """Everything that is compared behind a short prompt."""

    def way(make: Callable[[], Strategy | None]) -> Way:
        return contestants.ours(pair.target, make)

    def all_three() -> Strategy:
        return sp.Adaptive(sp.MTPChain(), sp.DraftModel(pair.draft), sp.PromptLookup())

    found = {STOCK: contestants.stock_plain(pair.target), OFF: way(sp.Off)}
    found |= {f"mtp {depth}": way(_fixed(sp.MTPChain, depth)) for depth in DEPTHS}
    found |= {
        f"draft {depth}": way(_fixed(lambda: sp.DraftModel(pair.draft), depth)) for depth in (2, 4)
    }
    found["lookup 4"] = way(_fixed(sp.PromptLookup, 4))
    return {**found, ADAPTIVE: way(lambda: None), ALL: way(all_three)}


def _fixed(
    make: Callable[[], sp.MTPChain | sp.DraftModel | sp.PromptLookup], depth: int
) -> Callable[[], Strategy]:
    return lambda: sp.Fixed(make(), depth)


def near_table(title: str, found: dict[str, Comparison]) -> report.Table:
    rows = [["", *(f"{kind}: {what}" for kind in found for what in ("tokens a round", "speedup"))]]
    for name in next(iter(found.values())).rates:
        row = [name]
        for comparison in found.values():
            row.append(f"{comparison.rounds[name]:.2f}")
            row.append(str(ratio(comparison.rates, name, STOCK)))
        rows.append(row)
    return report.Table(f"{title}, a prompt of {CONTEXT} tokens", rows)


def long_prompts_table(title: str, found: dict[str, AfterPrompt]) -> report.Table:
    names = list(next(iter(found.values())).rates)
    rows = [["speedup over mlx-lm", *found]]
    for name in names:
        rows.append(
            [name, *(f"{far.rates[name] / far.rates[STOCK]:.2f}" for far in found.values())]
        )
    return report.Table(f"{title}, far into a text", rows)


def main() -> None:
    options = report.options(__doc__)
    draft = grown_pair_draft()
    tables, panels, data = [], [], dict[str, object]()
    for size in HYBRIDS[2:] if options.quick else HYBRIDS[: options.some(2)]:
        title = f"hidden {size[0]}, {size[1]} layers"
        report.progress(title)
        target, tokenizer = grown_hybrid(*size)
        pair = Pair(target, draft)
        near = {}
        for kind in KINDS:
            texts = prompts(tokenizer, kind, CONTEXT, options.some(PROMPTS[size[0]]))
            tokens = options.some(TOKENS, 24)
            near[kind] = compare(measured(ways(pair)), texts, tokens, turns=1)
        tables.append(near_table(title, near))
        data[title] = {"near": near}
        panels.append(_panel(title, near))
        if size != HYBRIDS[1]:
            contexts = FAR[: options.some(2)]
            far = {
                f"{context} tokens": decode_after(
                    pair, prompts(tokenizer, "code", context, 1)[0], TURNS
                )
                for context in contexts
            }
            tables.append(long_prompts_table(title, far))
            data[f"{title}, far"] = far
    report.save(options, "grown", tables, data)
    picture.draw(panels, options.folder / "grown.png", bars=True)


def _panel(title: str, near: dict[str, Comparison]) -> picture.Panel:
    lines = {
        kind: {
            name: ratio(comparison.rates, name, STOCK) for name in comparison.rates if name != STOCK
        }
        for kind, comparison in near.items()
    }
    return picture.Panel(title, "", "speedup over mlx-lm's plain decoding", lines)


if __name__ == "__main__":
    main()
