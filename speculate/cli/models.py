"""From names on the command line to models and strategies."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal

from speculate.cli.sources import find, is_bundled
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

Loaded = tuple[SpeculativeModel, "TokenizerWrapper"]

PROPOSERS: Final = ("draft", "mtp", "lookup", "off")
"""What may be named as a proposer."""


def load_named(name: str | None, head: str | Literal[False] | None = None) -> Loaded:
    """Load a bundled model by its name, or any other one; the bundled one without a name.

    Args:
        name: A folder wins over a bundled model of the same name.
        head: Where the head is, if not where the model is: named likewise. `False` for none.
    """
    bundled = is_bundled(name)
    with busy(f"Loading {name or DEMO_MODELS[0]} ..."):
        place = find(head, head_only=True) if isinstance(head, str) else head
        source = demo_folder(name or DEMO_MODELS[0]) if bundled else name
        return load(source, head=place, dequantize=bundled)


def strategy_for(
    model: SpeculativeModel,
    names: Sequence[str] | None,
    depth: int | None,
    draft: SpeculativeModel | None,
) -> Strategy:
    """What decodes with proposers of these names.

    Args:
        model: The target.
        names: Of `PROPOSERS`; by default the draft model and the head, as far as there are
            such, and a lookup.
        depth: Tokens to draft; by default whatever pays, by whoever does.
        draft: The draft model.

    Raises:
        OptionError: There is nothing to draft with, or the names do not go together.
    """
    if names is None:
        there = {"draft": draft is not None, "mtp": model.head is not None, "lookup": True}
        names = [name for name, found in there.items() if found]
        # One depth is for one proposer: for the best there is.
        names = names if depth is None else names[:1]
    names = list(dict.fromkeys(names))
    if "off" in names:
        if len(names) > 1:
            raise OptionError("--proposer off goes with no other proposer")
        return Off()
    if depth is not None and len(names) > 1:
        raise OptionError("--depth is for one proposer: name one, or leave --depth out")
    proposers = [proposer_for(model, name, draft) for name in names]
    return Adaptive(*proposers) if depth is None else Fixed(proposers[0], depth)


def proposer_for(model: SpeculativeModel, name: str, draft: SpeculativeModel | None) -> Proposer:
    """The proposer of this name.

    Raises:
        OptionError: There is no head, or no draft model.
    """
    if name == "lookup":
        return PromptLookup()
    if name == "mtp":
        if model.head is None:
            raise OptionError(
                "the model has no multi-token-prediction head: say with --head where it is, or "
                "use --proposer draft, lookup or off"
            )
        return MTPChain()
    if draft is None:
        raise OptionError("--proposer draft needs a --draft-model")
    return DraftModel(draft)


@contextmanager
def busy(what: str) -> Iterator[None]:
    """Show that something takes a while, to a person."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield
