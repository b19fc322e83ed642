"""What taking back costs in a round of our decoder: its share of the time, and its operations.

    python -m benchmarks.rejection

The head drafts four tokens, of which the first is made wrong every time. What is timed is all that
follows from it: the target's caches go back, and the proposer hears what stands and goes back too.
What a rejection leaves for later shows in the next forward: its operations are counted, behind a
rejection and behind a block that stood.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, final

import mlx.core as mx

import speculate as sp
from benchmarks import picture, report
from benchmarks.grow import HYBRIDS, grown_hybrid
from benchmarks.prompts import prompts
from benchmarks.spread import Spread
from speculate import SpeculativeModel, speculation
from speculate.protocols import Commit, Draft, DraftSampler, Round

DEPTH: Final = 4
PROMPT: Final = 96
ROUNDS: Final = 20
REPEATS: Final = 5
GOAL: Final = 0.01


@final
class Wrong:
    """The head's drafts, wrong from the first token on, and the time that it takes to go back."""

    def __init__(self, inner: sp.MTPChain) -> None:
        self._inner = inner
        self.seconds: list[float] = []

    @property
    def name(self) -> str:
        return "wrong"

    def attach(self, target: SpeculativeModel, /) -> None:
        self._inner.attach(target)

    def begin(self, position: int, history: Sequence[int] = (), /) -> None:
        self._inner.begin(position, history)

    def position(self) -> int:
        return self._inner.position()

    def commit(self, commit: Commit, /) -> None:
        began = time.perf_counter()
        self._inner.commit(commit)
        self.seconds.append(time.perf_counter() - began)

    def propose(self, last_token: mx.array, limit: int, choose: DraftSampler, /) -> Draft:
        draft = self._inner.propose(last_token, limit, choose)
        # Token 2 is that of a rare character, and never what comes next here.
        return Draft(mx.full(draft.tokens.shape, 2, dtype=draft.tokens.dtype))

    def settle(self) -> None:
        self._inner.settle()


def engine(model: SpeculativeModel, prompt: Sequence[int], rounds: int) -> dict[str, float]:
    """Median seconds of a round of the decoder, and of what the proposer does after it."""
    wrong, seen = Wrong(sp.MTPChain()), list[Round]()
    decoder = sp.Decoder(model, sp.Fixed(wrong, DEPTH), observer=seen.append)
    list(decoder.generate(prompt, max_tokens=rounds + 8))
    refused = [round for round in seen if round.drafted == DEPTH and not round.accepted]
    return {
        "round": statistics.median(round.seconds for round in refused),
        "proposer": statistics.median(wrong.seconds),
        "refused": len(refused) / sum(round.drafted == DEPTH for round in seen),
    }


def target(model: SpeculativeModel, prompt: Sequence[int], rounds: int) -> float:
    """Median seconds in which the target's caches take four of five tokens back."""
    caches, times = model.make_cache(), list[float]()
    model.forward(mx.array([list(prompt)], dtype=mx.uint32), caches)
    block = mx.array([list(prompt[: 1 + DEPTH])], dtype=mx.uint32)
    with speculation(caches) as window:
        window.keep(window.fed())
        for _ in range(rounds):
            mx.eval(model.forward(block, caches).logits, [cache.arrays() for cache in caches])
            began = time.perf_counter()
            window.keep(1)
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def operations(model: SpeculativeModel, prompt: Sequence[int], keep: int) -> int:
    """Operations of the next forward, behind a block of which so many tokens stayed."""
    caches = model.make_cache()
    block = mx.array([list(prompt[: 1 + DEPTH])], dtype=mx.uint32)
    with speculation(caches) as window:
        mx.eval(model.forward(block, caches).logits, [cache.arrays() for cache in caches])
        window.keep(keep)
        out = model.forward(block, caches)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "graph.dot"
            mx.export_to_dot(str(path), out.logits, *[a for c in caches for a in c.arrays()])
            return path.read_text(encoding="utf-8").count("shape=rectangle")


def active(model: SpeculativeModel, prompt: Sequence[int], keep: int) -> int:
    """Bytes that are in use after a block of which so many tokens stayed."""
    caches = model.make_cache()
    block = mx.array([list(prompt[: 1 + DEPTH])], dtype=mx.uint32)
    with speculation(caches) as window:
        mx.eval(model.forward(block, caches).logits, [cache.arrays() for cache in caches])
        before = mx.get_active_memory()
        window.keep(keep)
        return mx.get_active_memory() - before


def main() -> None:
    options = report.options(__doc__)
    rows = [
        ["", "round, ms", "target rewinds, us", "head rewinds, us", "share", "operations", "bytes"]
    ]
    lines: dict[str, dict[str, Spread]] = {}
    data = dict[str, object]()
    for hidden, layers in HYBRIDS[2:] if options.quick else HYBRIDS[: options.some(2)]:
        model, tokenizer = grown_hybrid(hidden, layers)
        name = f"hidden {hidden}, {layers} layers"
        report.progress(name)
        texts = prompts(tokenizer, "code", PROMPT, options.some(REPEATS, 2))
        rounds = options.some(ROUNDS, 8)
        found = [engine(model, text, rounds) for text in texts]
        back = [target(model, text, rounds) for text in texts]
        shares = [
            (one["proposer"] + seconds) / one["round"]
            for one, seconds in zip(found, back, strict=True)
        ]
        extra = operations(model, texts[0], 1) - operations(model, texts[0], 1 + DEPTH)
        held = active(model, texts[0], 1)
        rows.append(
            [
                name,
                f"{1e3 * statistics.median(one['round'] for one in found):.1f}",
                f"{1e6 * statistics.median(back):.0f}",
                f"{1e6 * statistics.median(one['proposer'] for one in found):.0f}",
                f"{100 * statistics.median(shares):.2f} %",
                f"{extra:+d}",
                f"{held:+d}",
            ]
        )
        lines[name] = {"share": Spread.of(shares)}
        data[name] = {"rounds": found, "target": back, "operations": extra, "bytes": held}
    tables = [report.Table(f"A rejection in every round, {DEPTH} drafts", rows)]
    report.save(options, "rejection", tables, {"goal": GOAL, **data})
    panel = picture.Panel("Going back", "", "share of a round", lines, level=0.0, goal=GOAL)
    picture.draw([panel], options.folder / "rejection.png", bars=True)


if __name__ == "__main__":
    main()
