"""What stays the same over all texts of one decoder."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import final

import attrs

from speculate.errors import OptionError
from speculate.protocols import Commit, Observer, Sampler, SpeculativeModel, Strategy


def _positive(_: object, attribute: attrs.Attribute[int], value: int) -> None:
    if value < 1:
        raise OptionError(f"{attribute.name} must be at least 1, got {value}")


def _one_of(*allowed: int) -> Callable[[object, attrs.Attribute[int], int], None]:
    def check(_: object, attribute: attrs.Attribute[int], value: int) -> None:
        if value not in allowed:
            choices = ", ".join(str(number) for number in allowed)
            raise OptionError(f"kv {attribute.name} must be one of {choices}, got {value}")

    return check


@final
@attrs.frozen
class KVQuantization:
    """Quantise the rows of full attention once a text is long, as mlx-lm does.

    Attributes:
        bits: Bits a number.
        group_size: Numbers that share a scale.
        start: Length of the text from which on rows are quantised, in tokens.
    """

    bits: int = attrs.field(validator=_one_of(2, 3, 4, 5, 6, 8))
    group_size: int = attrs.field(validator=_one_of(32, 64, 128))
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

    def begin_again(self, position: int) -> None:
        """Have every proposer forget a text that was given up.

        One that fails is at another position than its text, and begins again next time.
        """
        for proposer in self.strategy.proposers:
            with suppress(Exception):
                proposer.begin(position)

    def settle(self) -> None:
        """Have every proposer leave its caches at the committed text.

        Raises:
            Exception: What the first of those that failed raised, after all were asked.
        """
        failures = []
        for proposer in self.strategy.proposers:
            try:
                proposer.settle()
            except Exception as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    def report(self, done: int, total: int) -> None:
        """Report prefill progress."""
        if self.progress is not None:
            self.progress(done, total)
