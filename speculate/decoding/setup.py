"""What stays the same over all texts of one decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import attrs

from speculate.errors import OptionError
from speculate.protocols import Commit, Observer, Sampler, SpeculativeModel, Strategy


def _positive(_: object, attribute: attrs.Attribute[int], value: int) -> None:
    if value < 1:
        raise OptionError(f"{attribute.name} must be at least 1, got {value}")


@final
@attrs.frozen
class KVQuantization:
    """Quantise the rows of full attention once a text is long, as mlx-lm does.

    Attributes:
        bits: Bits a number.
        group_size: Numbers that share a scale.
        start: Length of the text from which on rows are quantised, in tokens.
    """

    bits: int
    group_size: int
    start: int


@final
@attrs.frozen(kw_only=True)
class Setup:
    """A decoder's parts and options.

    Attributes:
        model: The target.
        strategy: Who drafts, and how much.
        sampler: Which tokens, and which drafts stand.
        observer: Hears every round.
        progress: Called with tokens done and in all, during prefill.
        prefill_step_size: Tokens of one prefill chunk.
        max_kv_size: Rows to keep a layer, for models that do not choose.
        kv: Whether and when to quantise rows.
    """

    model: SpeculativeModel
    strategy: Strategy
    sampler: Sampler
    observer: Observer | None = None
    progress: Callable[[int, int], None] | None = None
    prefill_step_size: int = attrs.field(default=2048, validator=_positive)
    max_kv_size: int | None = None
    kv: KVQuantization | None = None

    def tell(self, commit: Commit) -> None:
        """Let every proposer know what the text is, whoever drafted."""
        for proposer in self.strategy.proposers:
            proposer.commit(commit)

    def report(self, done: int, total: int) -> None:
        """Report prefill progress."""
        if self.progress is not None:
            self.progress(done, total)
