"""From names on the command line to models and strategies."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from speculate.errors import OptionError
from speculate.loading import DEMO_MODELS, load, load_demo
from speculate.proposers.draft_model import DraftModel
from speculate.proposers.mtp_chain import MTPChain
from speculate.proposers.prompt_lookup import PromptLookup
from speculate.protocols import SpeculativeModel, Strategy
from speculate.strategies.fixed import Fixed
from speculate.strategies.off import Off

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

Loaded = tuple[SpeculativeModel, "TokenizerWrapper"]


def load_named(name: str | None, head: str | Literal[False] | None = None) -> Loaded:
    """Load a bundled model by its name, or any other one; the bundled one without a name.

    Args:
        name: A folder wins over a bundled model of the same name.
        head: Where the head is, if not where the model is; `False` for none.
    """
    bundled = name is None or (name in DEMO_MODELS and not Path(name).exists())
    with busy(f"Loading {name or DEMO_MODELS[0]} ..."):
        if bundled and not head:
            return load_demo(name or DEMO_MODELS[0])
        return load(None if bundled else name, head=head)


def strategy_for(
    model: SpeculativeModel, proposer: str | None, depth: int, draft: SpeculativeModel | None
) -> Strategy:
    """What decodes with a proposer of this name.

    Args:
        model: The target.
        proposer: "mtp", "draft", "lookup" or "off"; by default a draft model, if there is one,
            or else a head.
        depth: Tokens to draft.
        draft: The draft model.

    Raises:
        OptionError: There is nothing to draft with.
    """
    if proposer is None:
        proposer = "draft" if draft is not None else "mtp" if model.head is not None else "off"
    if proposer == "off":
        return Off()
    if proposer == "lookup":
        return Fixed(PromptLookup(), depth)
    if proposer == "mtp":
        if model.head is None:
            raise OptionError(
                "the model has no multi-token-prediction head: say with --head where it is, or "
                "use --proposer draft, lookup or off"
            )
        return Fixed(MTPChain(), depth)
    if draft is None:
        raise OptionError("--proposer draft needs a --draft-model")
    return Fixed(DraftModel(draft), depth)


@contextmanager
def busy(what: str) -> Iterator[None]:
    """Show that something takes a while, to a person."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield
