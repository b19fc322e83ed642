"""No drafts: plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from speculate.protocols import Plan, Proposer, Round


@final
class Off:
    """Decodes token by token."""

    @property
    def proposers(self) -> Sequence[Proposer]:
        return ()

    def plan(self, remaining: int | None, /) -> Plan:
        return Plan()

    def observe(self, round: Round, /) -> None:
        """Nothing to learn."""
