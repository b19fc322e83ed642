"""The same Qwen3.5 with its head in mlx-vlm and here, text by text.

    python -m benchmarks.heads

mlx-vlm runs in a process and an environment of its own, which this makes from the package index
the first time. Both load the same files. For each text all ways of both take turns, forth and
back, so that each of ours has one of theirs beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import speculate as sp
from benchmarks import contestants, picture, report
from benchmarks.grow import HYBRIDS, grown_hybrid
from benchmarks.peers.vlm import MLXVLM, VERSION, mlx_vlm
from benchmarks.prompts import prompts
from benchmarks.saved import load_saved, save_grown
from benchmarks.spread import Spread
from benchmarks.texts import Measured, Rates, compare, measured, rate, ratio
from speculate import SpeculativeModel

BLOCKS: Final = (2, 3, 4, 5, 6)
"""Rows of a round: one more than is drafted."""
PROMPT: Final = 96
PROMPTS: Final = 5
TOKENS: Final = 96
GOAL: Final = 1.05
PLAIN: Final = "plain"
CAREFUL: Final = {2: 1.35, 3: 1.64, 4: 1.95, 5: 2.20}
"""What a round of a loop written by hand cost in plain tokens, on a model of this shape."""


def theirs(peer: MLXVLM, block: int | None, *, whole: bool = False) -> Measured:
    """mlx-vlm with blocks of a size."""
    return lambda prompt, tokens: peer.decode(prompt, tokens, block, whole=whole)


def ours(model: SpeculativeModel, depth: int) -> contestants.Way:
    """This library with a depth."""
    return contestants.ours(model, lambda: sp.Fixed(sp.MTPChain(), depth))


def ways(model: SpeculativeModel, peer: MLXVLM) -> dict[str, Measured]:
    """All that take turns."""
    found = {
        PLAIN: contestants.stock_plain(model),
        "ours off": contestants.ours(model, sp.Off),
        "ours adaptive": contestants.ours(model, lambda: sp.Adaptive(sp.MTPChain())),
    }
    blocks: dict[str, Measured] = {"vlm plain": theirs(peer, None)}
    for block in BLOCKS:
        blocks[f"vlm {block}"] = theirs(peer, block)
        blocks |= measured({f"ours {block}": ours(model, block - 1)})
        blocks[f"vlm whole {block}"] = theirs(peer, block, whole=True)
    return {**measured(found), **blocks}


def best(rates: Rates, kind: str) -> str:
    """The block at which somebody is fastest."""
    return max((f"{kind} {block}" for block in BLOCKS), key=lambda name: rate(rates, name))


def table(rates: Rates) -> report.Table:
    """Everyone over plain decoding, by block, and ours over theirs text by text."""
    rows = [["block", "mlx-vlm", "mlx-vlm, whole prompt", "ours", "ours / mlx-vlm", "ours / whole"]]
    for block in BLOCKS:
        names = [f"vlm {block}", f"vlm whole {block}", f"ours {block}"]
        speedups = [f"{ratio(rates, name, PLAIN).median:.2f}" for name in names]
        over = [str(ratio(rates, names[2], name)) for name in names[:2]]
        rows.append([str(block), *speedups, *over])
    return report.Table(
        f"Speedup over mlx-lm's plain decoding, mlx-vlm {VERSION} beside ours", rows
    )


def bests(rates: Rates) -> dict[str, Spread]:
    """Our best over theirs, and what else there is a goal for."""
    mine, default, whole = (best(rates, kind) for kind in ("ours", "vlm", "vlm whole"))
    return {
        f"{mine} / {default}": ratio(rates, mine, default),
        f"{mine} / {whole}": ratio(rates, mine, whole),
        f"ours adaptive / {default}": ratio(rates, "ours adaptive", default),
        f"ours adaptive / {mine}": ratio(rates, "ours adaptive", mine),
        "ours without drafts / mlx-lm plain": ratio(rates, "ours off", PLAIN),
        "mlx-vlm plain / mlx-lm plain": ratio(rates, "vlm plain", PLAIN),
    }


def round_costs(rates: Rates, rounds: Mapping[str, float]) -> report.Table:
    """What a round of ours takes, in plain tokens, beside what was reached by hand."""
    rows = [["block", "tokens a round", "a round in plain tokens", "by hand, elsewhere"]]
    for block in BLOCKS:
        name = f"ours {block}"
        cost = rounds[name] / ratio(rates, name, PLAIN).median
        by_hand = f"{CAREFUL[block]:.2f}" if block in CAREFUL else ""
        rows.append([str(block), f"{rounds[name]:.2f}", f"{cost:.2f}", by_hand])
    return report.Table("Cost of a round", rows)


def main() -> None:
    options = report.options(__doc__)
    grown, tokenizer = grown_hybrid(*HYBRIDS[2])
    texts = prompts(tokenizer, "code", PROMPT, options.some(PROMPTS, 1 if options.quick else 2))
    tokens = options.some(TOKENS, 24 if options.quick else 48)
    with TemporaryDirectory() as place:
        files = save_grown(grown, Path(place))
        del grown
        model = load_saved(*files)
        with mlx_vlm(*files) as peer:
            found = compare(ways(model, peer), texts, tokens)
    rates = found.rates
    summary = [["", "tokens a second, ratio"]]
    summary += [[name, str(spread)] for name, spread in bests(rates).items()]
    tables = [table(rates), round_costs(rates, found.rounds), report.Table("At the best", summary)]
    data = {"goal": GOAL, "same texts": found.same, "rates": rates, "rounds": found.rounds}
    report.save(options, "heads", tables, data)
    lines = {
        label: {str(block): ratio(rates, f"{kind} {block}", PLAIN) for block in BLOCKS}
        for label, kind in {
            f"mlx-vlm {VERSION}": "vlm",
            "mlx-vlm, whole prompt": "vlm whole",
            "speculate": "ours",
        }.items()
    }
    panel = picture.Panel("Qwen3.5 with head, 63 M", "block", "speedup over plain", lines)
    picture.draw([panel], options.folder / "heads.png")


if __name__ == "__main__":
    main()
