"""The parts and options that a text is decoded with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

import attrs

from speculate.decoding.drafting import Drafting
from speculate.protocols import Observer, Sampler, SpeculativeModel, Strategy
from speculate.validation import validated_integer

KV_BITS: Final = (2, 3, 4, 5, 6, 8)
KV_GROUP_SIZES: Final = (32, 64, 128)


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


def checked_quantization(
    kv_bits: object, kv_group_size: object, quantized_kv_start: object
) -> KVQuantization | None:
    """What three options say of quantised rows; `None` where they say to quantise none.

    Raises:
        OptionError: One of them cannot be used.
    """
    group_size = validated_integer("kv_group_size", kv_group_size, among=KV_GROUP_SIZES)
    start = validated_integer("quantized_kv_start", quantized_kv_start, 0)
    if kv_bits is None:
        return None
    return KVQuantization(validated_integer("kv_bits", kv_bits, among=KV_BITS), group_size, start)


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
    prefill_step_size: int = 2048
    max_kv_size: int | None = None
    kv: KVQuantization | None = None

    def report(self, done: int, total: int) -> None:
        """Report prefill progress."""
        if self.progress is not None:
            self.progress(done, total)
