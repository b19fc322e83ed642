"""A model that is to be verified, with whoever drafts for it and the text to do it on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final, final

import mlx.core as mx

from speculate.backends.rotating import RewindableRotatingKVCache
from speculate.errors import OptionError
from speculate.models.adapter import StockAdapter
from speculate.protocols import SpeculativeModel, StockModel
from speculate.sampling.options import Sampling
from speculate.testing.verify.drafters import Drafter
from speculate.testing.verify.noise import NOISE_TOKENS, measure_noise
from speculate.testing.verify.plain import PlainText
from speculate.testing.verify.rounding import Rounding

CHUNK: Final = 2048
"""Tokens that are fed at once where nothing is compared."""

PROMPT: Final = 48
"""Tokens of a prompt."""

WIDE: Final = 256
"""Prompts fill windows up to this size twice. Past wider ones only `rewind` goes: it takes in so
much once, and not once a text."""


@final
class Subject:
    """A model that is to be verified.

    Args:
        model: The model.
        text: Ids, of which prompts are made. Read again from the front when they run out.
        drafters: Who drafts for it.
        stock: The model of mlx-lm that it drives; by default what an adapter that derives from
            this package's says. Without one the model is compared with itself.
        tokens: Length of a decoded text.
        seed: Of what is sampled.

    Raises:
        OptionError: The text is empty, has ids that are not the model's, or `tokens` is below 1.
        CannotRewindError: A layer has a cache that cannot take tokens back.
    """

    def __init__(
        self,
        model: SpeculativeModel,
        text: Sequence[int],
        *,
        drafters: Iterable[Drafter] = (),
        stock: StockModel | None = None,
        tokens: int = 32,
        seed: int = 0,
    ) -> None:
        if tokens < 1:
            raise OptionError(f"tokens must be at least 1, got {tokens}")
        if not text or not all(0 <= id_ < model.vocab_size for id_ in text):
            raise OptionError(f"a text has at least one id, and all below {model.vocab_size}")
        if stock is None and isinstance(model, StockAdapter):
            stock = model.stock
        self.model = model
        self.stock = stock
        self.drafters: Mapping[str, Drafter] = {drafter.name: drafter for drafter in drafters}
        self.tokens = tokens
        self.seed = seed
        self._text = list(text)
        self._plain: dict[Sampling, PlainText] = {}
        self.window = _widest_window(model.make_cache())

    def ids(self, start: int, stop: int) -> list[int]:
        """Some tokens of the text."""
        return [self._text[position % len(self._text)] for position in range(start, stop)]

    def array(self, ids: Sequence[int]) -> mx.array:
        """`(1, T)`, as a model is fed."""
        return mx.array([list(ids)], dtype=mx.uint32)

    @property
    def prompt(self) -> list[int]:
        """The beginning of the text. It fills a sliding window twice, if that is not too wide."""
        twice = 2 * self.window + 10 if self.window <= WIDE else 0
        return self.ids(0, max(PROMPT, twice))

    @cached_property
    def rounding(self) -> Rounding:
        """What rounding can explain on this machine."""
        return Rounding(measure_noise(self.cold, self.ids(0, NOISE_TOKENS), self.window))

    def plain(self, sampling: Sampling) -> PlainText:
        """The text that plain decoding gives behind the prompt."""
        if sampling not in self._plain:
            self._plain[sampling] = PlainText(self.model, self.prompt, self.tokens, sampling)
        return self._plain[sampling]

    def stock_caches(self) -> list[object]:
        """Empty caches of mlx-lm's own types."""
        return [cache.hand_back() for cache in self.model.make_cache()]

    def cold(self, ids: Sequence[int], widths: Sequence[int]) -> mx.array:
        """Logits `(T, vocabulary)` of a text that nothing of is taken back, from mlx-lm's model.

        Args:
            ids: The text.
            widths: Tokens to feed at a time, until none is left. Logits are given of all but
                those of the first time.
        """
        ...


def _widest_window(caches: Sequence[object]) -> int:
    """Rows of the widest sliding window; 0 without one."""
    return max((c.max_size for c in caches if isinstance(c, RewindableRotatingKVCache)), default=0)
