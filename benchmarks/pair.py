"""The grown target and who drafts for it."""

from __future__ import annotations

from typing import Final, final

import attrs

import speculate as sp
from benchmarks.grow import grown_draft
from speculate import SpeculativeModel
from speculate.protocols import MTPHead, Proposer

DRAFT: Final = (512, 4)
"""Hidden size and layers of the draft model."""


@final
@attrs.frozen
class Pair:
    """A target with its head, and a draft model."""

    target: SpeculativeModel
    draft: SpeculativeModel

    def proposer(self, name: str) -> Proposer:
        """`"mtp"` or `"draft"`."""
        return sp.MTPChain() if name == "mtp" else sp.DraftModel(self.draft)

    @property
    def head(self) -> MTPHead:
        """The target's.

        Raises:
            ValueError: It has none.
        """
        if self.target.head is None:
            raise ValueError("the target has no head")
        return self.target.head


def grown_pair_draft() -> SpeculativeModel:
    """The bundled draft model, as large as such models are beside these targets."""
    return grown_draft(*DRAFT)[0]
