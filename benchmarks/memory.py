"""Whether anything grows over a long text that is not a KV cache.

    python -m benchmarks.memory

The bundled model decodes 20,000 tokens with its head. What is in use is compared with the rows
that its attention layers and its head keep of every token, which is all that may grow.
"""

from __future__ import annotations

import resource
from collections.abc import Sequence
from typing import Final, final

import attrs
import mlx.core as mx

import speculate as sp
from benchmarks import report
from benchmarks.grow import hybrid_args
from benchmarks.places import head_width
from speculate import SpeculativeModel

TOKENS: Final = 20_000
EVERY: Final = 1_000
DEPTH: Final = 3
STEP: Final = 256
"""Rows by which a KV cache grows."""
PROMPT: Final = 64


@final
@attrs.frozen
class Sample:
    """Memory after so many tokens, in bytes.

    Attributes:
        tokens: That were emitted.
        active: In use.
        peak: Most that was in use since the last sample.
        rows: What all KV caches take by their lengths.
        resident: Of the process, at most so far.
    """

    tokens: int
    active: int
    peak: int
    rows: int
    resident: int


def row_bytes(model: SpeculativeModel) -> int:
    """Bytes that a token takes in the caches of attention layers and of the head, in float32.

    `2 * key-value heads * head width * 4` for each of them: a key and a value.
    """
    args = hybrid_args(model)
    layers = args.num_hidden_layers // args.full_attention_interval + 1
    return 2 * args.num_key_value_heads * head_width(args) * 4 * layers


def samples(
    model: SpeculativeModel, prompt: Sequence[int], tokens: int, every: int
) -> list[Sample]:
    """Decode, and look at the memory now and then."""
    decoder = sp.Decoder(model, sp.Fixed(sp.MTPChain(), DEPTH))
    found = []
    for count, _ in enumerate(decoder.generate(prompt, max_tokens=tokens), 1):
        if count % every == 0:
            text = len(prompt) + count
            allocated = -(-text // STEP) * STEP
            found.append(
                Sample(
                    tokens=count,
                    active=mx.get_active_memory(),
                    peak=mx.get_peak_memory(),
                    rows=allocated * row_bytes(model),
                    resident=1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
                )
            )
            mx.reset_peak_memory()
            report.progress(f"  {count} tokens")
    return found


def main() -> None:
    options = report.options(__doc__)
    model, tokenizer = sp.load_demo("hybrid")
    prompt = tokenizer.encode("class Calendar:\n    def ")[:PROMPT]
    tokens, every = (
        options.some(TOKENS, 1_000 if options.quick else 4_000),
        options.some(EVERY, 250),
    )
    found = samples(model, prompt, tokens, every)
    rows = [["tokens", "in use, MB", "of it KV rows, MB", "the rest, MB", "peak, MB"]]
    rows += [
        [
            str(one.tokens),
            *(
                f"{size / 1e6:.3f}"
                for size in (one.active, one.rows, one.active - one.rows, one.peak)
            ),
        ]
        for one in found
    ]
    first, last = found[0], found[-1]
    growth = (last.active - first.active) - (last.rows - first.rows)
    rest = report.Table(
        "Growth that is not KV rows",
        [["tokens", "bytes"], [f"{first.tokens} to {last.tokens}", f"{growth:+d}"]],
    )
    tables = [report.Table(f"Memory, MTP chain of depth {DEPTH}", rows), rest]
    report.save(options, "memory", tables, {"samples": found, "growth": growth})
    _draw(found, options)


def _draw(found: Sequence[Sample], options: report.Options) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    tokens = [one.tokens for one in found]
    axes.plot(tokens, [one.peak / 1e6 for one in found], label="peak")
    axes.plot(tokens, [one.active / 1e6 for one in found], label="in use")
    axes.plot(tokens, [one.rows / 1e6 for one in found], ":", color="black", label="KV rows")
    axes.set_xlabel("tokens emitted")
    axes.set_ylabel("MB")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(options.folder / "memory.png", dpi=120)


if __name__ == "__main__":
    main()
