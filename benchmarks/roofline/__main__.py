"""What speculation can bring on a machine, from bytes and operations alone.

    python -m benchmarks.roofline --acceptance 0.8 --context 4096

For a model and a machine of your own:

    python -m benchmarks.roofline --shape shape.json --machine 400,14
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.report import RESULTS, Options, Table, save
from benchmarks.roofline.bound import Bound
from benchmarks.roofline.facts import MACHINES, MODELS, Machine
from benchmarks.roofline.shape import Shape

ROWS: Final = (2, 3, 4, 5, 8)
DEEPEST: Final = 8
HEADING: Final = (
    "",
    "GB a token",
    "GFLOP a token",
    "tokens/s",
    *(f"v({rows})" for rows in ROWS),
    "c",
    "best depth",
    "speedup",
    "all drafts right",
)


def row(name: str, bound: Bound, survival: Sequence[float]) -> list[str]:
    moved = bound.shape.weight_bytes(1) + bound.shape.cache_bytes(bound.context)
    computed = bound.shape.operations(1, bound.context)
    depth, right = bound.best(survival), [1.0] * len(survival)
    return [
        name,
        f"{moved / 1e9:.2f}",
        f"{computed / 1e9:.1f}",
        f"{1 / bound.seconds(1):.0f}",
        *(f"{bound.v(rows):.2f}" for rows in ROWS),
        f"{bound.c():.3f}",
        str(depth),
        f"{bound.speedup(survival[:depth]):.2f}",
        f"{bound.speedup(right[: bound.best(right)]):.2f}",
    ]


def _machine(text: str) -> Machine:
    bandwidth, operations = (float(part) for part in text.split(","))
    return Machine(bandwidth * 1e9, operations * 1e12)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--acceptance", type=float, default=0.8, help="S_j is this to the power of j")
    add("--survival", type=float, nargs="+", metavar="S", help="S_1, S_2, ... in its place")
    add("--context", type=int, default=4096, metavar="TOKENS", help="of text in front")
    add("--shape", type=Path, metavar="JSON", help="a model of your own: the fields of Shape")
    add("--machine", type=_machine, metavar="GB/s,TFLOPS", help="a machine of your own")
    add("--output", type=Path, default=RESULTS, help="folder for the JSON file")
    given = parser.parse_args()
    survival = given.survival or [given.acceptance**depth for depth in range(1, DEEPEST + 1)]
    models, machines = MODELS, MACHINES
    if given.shape:
        models = {given.shape.stem: Shape(**json.loads(given.shape.read_text(encoding="utf-8")))}
    if given.machine:
        machines = {"this machine": given.machine}
    tables = []
    for name, shape in models.items():
        bounds = {
            title: Bound(shape, machine, given.context) for title, machine in machines.items()
        }
        rows = [row(title, bound, survival) for title, bound in bounds.items()]
        tables.append(Table(name, [list(HEADING), *rows]))
    facts = {"survival": survival, "context": given.context}
    save(Options(quick=False, folder=given.output), "roofline", tables, facts)


if __name__ == "__main__":
    main()
