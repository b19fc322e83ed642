"""Checkpoints, models and strategies by their names on the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from speculate.cli._console import spinner
from speculate.decoding.stats import DraftStats
from speculate.errors import OptionError
from speculate.loading import DEMO_MODELS, demo_folder, load
from speculate.proposers.draft_model import DraftModel
from speculate.proposers.mtp_chain import MTPChain
from speculate.proposers.prompt_lookup import PromptLookup
from speculate.protocols import Proposer, SpeculativeModel, Strategy
from speculate.strategies.adaptive import Adaptive
from speculate.strategies.fixed import Fixed, Off

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

PROPOSERS: Final = ("draft", "mtp", "lookup", "off")
"""Names that `--proposer` accepts."""

UNAVAILABLE: Final = {
    "mtp": "the model has no multi-token-prediction head: give its location with --head, or "
    "use --proposer draft, lookup or off",
    "draft": "--proposer draft needs a --draft-model",
}
"""Errors by the name of a proposer that is not available."""


def find_checkpoint(
    name: str | None, revision: str | None = None, *, head_only: bool = False
) -> Path:
    """Find a checkpoint, and download it if necessary, or only the files that hold the head.

    The name is a path, a bundled model or a hub repository, in this order; `None` is the first
    bundled model. The revision is a branch, tag or commit of a repository.
    """
    if is_bundled(name):
        return demo_folder(name or DEMO_MODELS[0])
    # Imports mlx-lm.
    from speculate.checkpoints.hub import resolve_checkpoint

    return resolve_checkpoint(name or DEMO_MODELS[0], revision, head_only=head_only)


def is_bundled(name: str | None) -> bool:
    """Whether a name means a model that comes with this package."""
    return name is None or (name in DEMO_MODELS and not Path(name).exists())


def load_named(
    name: str | None, head: str | Literal[False] | None = None
) -> tuple[SpeculativeModel, TokenizerWrapper]:
    """Load a model named as in `find_checkpoint`, with its head or another; `False` for none."""
    with spinner(f"Loading {name or DEMO_MODELS[0]} ..."):
        place = find_checkpoint(head, head_only=True) if isinstance(head, str) else head
        return load(find_checkpoint(name), head=place, dequantize=is_bundled(name))


def available_proposers(
    model: SpeculativeModel, draft: SpeculativeModel | None
) -> dict[str, Callable[[], Proposer]]:
    """Factories of the proposers that a model has, by name, the best one first."""
    found: dict[str, Callable[[], Proposer]] = {}
    if draft is not None:
        found["draft"] = partial(DraftModel, draft)
    if model.head is not None:
        found["mtp"] = MTPChain
    return {**found, "lookup": PromptLookup}


def strategy_for(
    model: SpeculativeModel,
    names: Sequence[str] | None,
    depth: int | None,
    draft: SpeculativeModel | None,
) -> Strategy:
    """Make a strategy from names in `PROPOSERS`; by default from all that are available.

    Without a depth, proposer and depth adapt in every round.

    Raises:
        OptionError: A proposer is not available, or the names cannot be combined.
    """
    available = available_proposers(model, draft)
    if names is None:
        # A fixed depth takes one proposer: the best one available.
        names = list(available) if depth is None else list(available)[:1]
    names = list(dict.fromkeys(names))
    if "off" in names:
        if len(names) > 1:
            raise OptionError("--proposer off cannot be combined with other proposers")
        return Off()
    if depth is not None and len(names) > 1:
        raise OptionError("--depth is for one proposer: name one, or leave --depth out")
    for name in names:
        if name not in available:
            raise OptionError(UNAVAILABLE[name])
    proposers = [available[name]() for name in names]
    return Adaptive(*proposers) if depth is None else Fixed(proposers[0], depth)


def share_per_position(drafts: DraftStats) -> list[float]:
    """Accepted share of the drafted tokens at each draft position."""
    pairs = zip(drafts.accepted_per_position, drafts.drafted_per_position, strict=True)
    return [accepted / drafted for accepted, drafted in pairs]
