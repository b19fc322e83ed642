"""The parts and options that a text is decoded with."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import attrs

from speculate.decoding.drafting import Drafting
from speculate.errors import OptionError
from speculate.protocols import Observer, Sampler, SpeculativeModel, Strategy


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
        drafting: Those who may draft, in step with the text.
        sampler: Which tokens, and which drafts stand.
        observer: Hears every round.
        progress: Called with tokens done and in all, during prefill.
        prefill_step_size: Tokens of one prefill chunk.
        max_kv_size: Rows to keep a layer, for models that do not choose.
        kv: Whether and when to quantise rows.
    """

    model: SpeculativeModel
    strategy: Strategy
    drafting: Drafting
    sampler: Sampler
    observer: Observer | None = None
    progress: Callable[[int, int], None] | None = None
    prefill_step_size: int = attrs.field(default=2048, validator=_positive)
    max_kv_size: int | None = None
    kv: KVQuantization | None = None

    def report(self, done: int, total: int) -> None:
        """Report prefill progress."""
        if self.progress is not None:
            self.progress(done, total)
