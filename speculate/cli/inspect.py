"""`speculate inspect`: describes a checkpoint, and checks whether its head fits its model."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final, cast, final, get_args

import attrs
import mlx.core as mx

from speculate.cli._arguments import add_head
from speculate.cli._console import as_json
from speculate.cli._models import find_checkpoint, is_bundled
from speculate.errors import OptionError
from speculate.loading import DEMO_MODELS, demo_prompt, load, load_mtp_head
from speculate.protocols import MTPHead, SpeculativeModel

if TYPE_CHECKING:
    from speculate.checkpoints.norms import Convention

PROMPT_TOKENS: Final = 96
TOKENS: Final = 48
"""Tokens of the bundled prompt, and of its greedy continuation that the head has to predict."""

MIN_ACCEPTANCE: Final = 0.05
"""Acceptance rate of the first draft below which the head does not fit the model."""

SUSPICIOUS_ACCEPTANCE: Final = 0.2
"""Acceptance rate of the first draft below which both norm conventions are compared."""

CLEARLY_BETTER: Final = 2.0
"""Ratio of acceptance rates above which the other norm convention is the right one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    place = "a model's folder, a head's folder or file, a hub repository, or a bundled model"
    add("path", nargs="?", metavar="PATH", help=f"{place} (default: {DEMO_MODELS[0]})")
    add("--json", action="store_true", help="print one JSON object instead of a table")
    check = (
        "load the model and its head, and measure the acceptance rate of the first draft; exit "
        "status 1 if it is below 5 %%"
    )
    add("--check", action="store_true", help=check)
    add_head(parser)
    norms = "for --check: how the head's norms are stored (default: detected)"
    add("--norms", choices=("gains", "raw"), help=norms)


def run(args: argparse.Namespace) -> int:
    """Print a report; return 1 if the head does not draft for the model."""
    from speculate.cli._inspect_report import inspect, show

    if args.check and args.head is False:
        raise OptionError("--check needs the head: leave out --no-head, or --check")
    head = find_checkpoint(args.head, head_only=True) if args.head else args.head
    report = inspect(find_checkpoint(args.path), head)
    check = check_head(args.path, args.head, args.norms) if args.check else None
    if args.json:
        found = attrs.asdict(report)
        if check is not None:
            found["check"] = {**attrs.asdict(check), "passed": check.passed}
        print(as_json(found, indent=2))
    else:
        show(report, [] if check is None else check.lines())
    return 0 if check is None or check.passed else 1


@final
@attrs.frozen
class HeadCheck:
    """How well a head predicts the greedy output of a model."""

    tokens: int
    acceptance: float
    """Share of the tokens predicted correctly, as first draft after each true one."""
    by_convention: dict[str, float]
    """The same with all norms stored in one convention; empty if it is not suspicious."""

    @property
    def passed(self) -> bool:
        """Whether the head drafts for the model, with its norms in the right convention."""
        best = max(self.by_convention.values(), default=0.0)
        return self.acceptance >= max(MIN_ACCEPTANCE, best / CLEARLY_BETTER)

    def lines(self) -> list[str]:
        """The result, for a report."""
        found = [f"{self.acceptance:.0%} of first drafts accepted, over {self.tokens} tokens"]
        if not self.by_convention:
            return found
        found.append("Such a low acceptance rate usually means that the head's norms were read in")
        found.append("the wrong convention, or that the head was trained for another model.")
        for convention, acceptance in self.by_convention.items():
            found.append(f"with all its norms stored as {convention}: {acceptance:.0%}")
        best = max(self.by_convention, key=lambda name: self.by_convention[name])
        if self.by_convention[best] < MIN_ACCEPTANCE:
            found.append("Neither helps: the head was trained for another model.")
        elif not self.passed:
            found.append(f'Load it with load_mtp_head(..., norms="{best}").')
        return found


def check_head(name: str | None, head: str | None, norms: Convention | None = None) -> HeadCheck:
    """Load a model and a head by their names, and let it predict the model's greedy output."""
    from speculate.checkpoints.norms import Convention

    folder, bundled = find_checkpoint(name), is_bundled(name)
    if not folder.is_dir():
        remedy = "Name its model, and give this file with --head"
        raise OptionError(f"{folder}: is a head alone. {remedy}")
    model, tokenizer = load(folder, head=False, dequantize=bundled)
    place = folder if head is None else find_checkpoint(head, head_only=True)

    def measure(convention: Convention | None) -> float:
        loaded = load_mtp_head(place, model, norms=convention, dequantize=bundled)
        return first_draft_acceptance(model, loaded, ids)

    ids = cast("list[int]", tokenizer.encode(demo_prompt()))[:PROMPT_TOKENS]
    found = measure(norms)
    conventions = () if found >= SUSPICIOUS_ACCEPTANCE else get_args(Convention)
    return HeadCheck(TOKENS, found, {name: measure(name) for name in conventions})


def first_draft_acceptance(
    model: SpeculativeModel, head: MTPHead, prompt: list[int], tokens: int = TOKENS
) -> float:
    """Share of greedy tokens that a head predicts from the true tokens before them.

    The prompt has at least two ids.
    """
    caches, fed = model.make_cache(), mx.array([prompt])
    states, chosen = [], [fed]
    for _ in range(tokens):
        trunk = model.forward(fed, caches)
        fed = mx.argmax(trunk.logits[:, -1:], axis=-1)
        mx.eval(fed, trunk.hidden)
        states.append(trunk.hidden)
        chosen.append(fed)
    hidden, ids = mx.concatenate(states, axis=1), mx.concatenate(chosen, axis=1)
    # Row i pairs the hidden state of token i with token i + 1, and predicts token i + 2.
    first, cache = len(prompt) - 2, head.make_cache()
    if first:
        mx.eval(head.step(hidden[:, :first], ids[:, 1 : first + 1], cache).hidden)
    out = head.step(hidden[:, first:-1], ids[:, first + 1 : -1], cache)
    right = mx.argmax(out.logits, axis=-1) == ids[:, first + 2 :]
    return cast(float, right.astype(mx.float32).mean().item())
