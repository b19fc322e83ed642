"""Checkpoints, models and strategies by their names on the command line, and a decoding run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, final

import attrs

from speculate.cli._console import spinner
from speculate.decoding.stats import DraftStats, Stats
from speculate.errors import OptionError
from speculate.loading import DEMO_MODELS, demo_folder, load
from speculate.proposers.draft_model import DraftModel
from speculate.proposers.mtp_chain import MTPChain
from speculate.proposers.prompt_lookup import PromptLookup
from speculate.protocols import Proposer, SpeculativeModel, Strategy
from speculate.strategies.adaptive import Adaptive
from speculate.strategies.fixed import Fixed, Off

if TYPE_CHECKING:
    from mlx_lm.generate import GenerationResponse
    from mlx_lm.tokenizer_utils import TokenizerWrapper

PROPOSERS: Final = ("draft", "mtp", "lookup", "off")
"""Names that `--proposer` accepts."""


def find_checkpoint(
    name: str | None, revision: str | None = None, *, head_only: bool = False
) -> Path:
    """Find a checkpoint, and download it if necessary.

    Args:
        name: A path, a bundled model or a hub repository, in this order; `None` for the first
            bundled model.
        revision: Branch, tag or commit of a repository.
        head_only: Download only the files that hold the head.

    Raises:
        CheckpointError: It does not exist.
    """
    if is_bundled(name):
        return demo_folder(name or DEMO_MODELS[0])
    # Imports mlx-lm.
    from speculate.checkpoints.folder import resolve_checkpoint

    return resolve_checkpoint(name or DEMO_MODELS[0], revision, head_only=head_only)


def is_bundled(name: str | None) -> bool:
    """Whether a name means a model that comes with this package."""
    return name is None or (name in DEMO_MODELS and not Path(name).exists())


def load_named(
    name: str | None, head: str | Literal[False] | None = None
) -> tuple[SpeculativeModel, TokenizerWrapper]:
    """Load a model named as in `find_checkpoint`, with its head or another; `False` for none."""
    bundled = is_bundled(name)
    with spinner(f"Loading {name or DEMO_MODELS[0]} ..."):
        place = find_checkpoint(head, head_only=True) if isinstance(head, str) else head
        source = demo_folder(name or DEMO_MODELS[0]) if bundled else name
        return load(source, head=place, dequantize=bundled)


def available_proposers(model: SpeculativeModel, draft: SpeculativeModel | None) -> list[str]:
    """Names of the proposers of a model: the draft model and the head if any, and lookup."""
    found = {"draft": draft is not None, "mtp": model.head is not None, "lookup": True}
    return [name for name, exists in found.items() if exists]


def strategy_for(
    model: SpeculativeModel,
    names: Sequence[str] | None,
    depth: int | None,
    draft: SpeculativeModel | None,
) -> Strategy:
    """Make a strategy from proposer names.

    Args:
        model: The target.
        names: Names in `PROPOSERS`; all that are available by default.
        depth: Tokens to draft. By default proposer and depth adapt in every round.
        draft: The draft model.

    Raises:
        OptionError: A proposer is not available, or the names cannot be combined.
    """
    if names is None:
        names = available_proposers(model, draft)
        # A fixed depth takes one proposer: the best one available.
        names = names if depth is None else names[:1]
    names = list(dict.fromkeys(names))
    if "off" in names:
        if len(names) > 1:
            raise OptionError("--proposer off cannot be combined with other proposers")
        return Off()
    if depth is not None and len(names) > 1:
        raise OptionError("--depth is for one proposer: name one, or leave --depth out")
    proposers = [_proposer_for(model, name, draft) for name in names]
    return Adaptive(*proposers) if depth is None else Fixed(proposers[0], depth)


def _proposer_for(model: SpeculativeModel, name: str, draft: SpeculativeModel | None) -> Proposer:
    if name == "lookup":
        return PromptLookup()
    if name == "mtp":
        if model.head is None:
            raise OptionError(
                "the model has no multi-token-prediction head: give its location with --head, or "
                "use --proposer draft, lookup or off"
            )
        return MTPChain()
    if draft is None:
        raise OptionError("--proposer draft needs a --draft-model")
    return DraftModel(draft)


def share_per_position(drafts: DraftStats) -> list[float]:
    """Accepted share of the drafted tokens at each draft position."""
    pairs = zip(drafts.accepted_per_position, drafts.drafted_per_position, strict=True)
    return [accepted / drafted for accepted, drafted in pairs]


@final
@attrs.frozen
class Completion:
    """A generated text with its counters; the speed is without the prompt."""

    ids: Sequence[int]
    text: str
    stats: Stats
    tokens_per_second: float

    @property
    def accepted(self) -> str:
        """Accepted and drafted tokens, as in "3 of 8"."""
        return f"{self.stats.accepted_tokens} of {self.stats.draft_tokens}"

    def line(self) -> str:
        """The counters in one line."""
        drafts = "nothing drafted"
        if self.stats.drafts:
            length = f"mean acceptance length {self.stats.mean_acceptance_length:.2f}"
            rate = f"{self.stats.acceptance_rate:.0%}"
            drafts = f"drafts accepted {self.accepted} ({rate}), {length}"
        return (
            f"{len(self.ids)} tokens, {self.stats.rounds} target passes, {drafts}, "
            f"{self.tokens_per_second:.1f} tokens/s"
        )


def complete(
    responses: Iterable[GenerationResponse],
    stats: Stats,
    write: Callable[[str], object] = lambda _: None,
) -> Completion:
    """Generate a text, and write each piece of it. `stats` are updated by its observer."""
    ids: list[int] = []
    pieces: list[str] = []
    for response in responses:
        ids.append(response.token)
        pieces.append(response.text)
        write(response.text)
    return Completion(ids, "".join(pieces), stats, response.generation_tps)
