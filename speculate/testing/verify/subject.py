"""A model that is to be verified, with whoever drafts for it and the text to do it on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final, final

from speculate.backends.rotating import RewindableRotatingKVCache
from speculate.errors import OptionError
from speculate.models.adapter import StockAdapter
from speculate.protocols import Rollbackable, SpeculativeModel, StockModel
from speculate.sampling.options import Sampling
from speculate.testing.verify.drafters import Drafter
from speculate.testing.verify.oracle import Oracle
from speculate.testing.verify.plain import PlainText
from speculate.testing.verify.rounding import Rounding

PROMPT: Final = 32
"""Tokens of a prompt, and of the text whose rounding is measured."""

BEYOND: Final = 10
"""Tokens of a prompt beyond two sliding windows."""

WIDE: Final = 256
"""Prompts fill windows up to this size twice. Past wider ones only the rewind is followed, which
takes in so long a text once, and not once for every text that is decoded."""


@final
class Subject:
    """A model that is to be verified.

    Args:
        model: The model.
        text: Ids that prompts are made of, read again from the front where they run out.
        drafters: Who drafts for it.
        stock: The model of mlx-lm that it drives; by default what an adapter says that derives
            from this package's. Without one the model is compared with itself.
        tokens: Length of each decoded text.
        seed: Of what is sampled.

    Raises:
        OptionError: `tokens` is below 1, or the text is not of the model's ids.
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
            raise OptionError(f"a text needs ids, all of them below {model.vocab_size}")
        if stock is None and isinstance(model, StockAdapter):
            stock = model.stock
        self.model = model
        self.drafters: list[Drafter] = list(drafters)
        self.oracle: Oracle = Oracle(model, stock)
        self.tokens = tokens
        self.seed = seed
        self.window: int = _widest_window(model.make_cache())
        self._text = list(text)
        self._plain: dict[Sampling, PlainText] = {}
        self._spread: dict[tuple[int, ...], list[float]] = {}

    def ids(self, start: int, stop: int) -> list[int]:
        """Some tokens of the text."""
        return [self._text[position % len(self._text)] for position in range(start, stop)]

    @property
    def prompt(self) -> list[int]:
        """The beginning of the text."""
        twice = 2 * self.window + BEYOND if 0 < self.window <= WIDE else 0
        return self.ids(0, max(PROMPT, twice))

    @cached_property
    def rounding(self) -> Rounding:
        """What rounding can explain on this machine: found out when first asked for."""
        return Rounding(self.oracle.noise(self.ids(0, PROMPT), self.window))

    def plain(self, sampling: Sampling) -> PlainText:
        """The text that plain decoding gives behind the prompt."""
        if sampling not in self._plain:
            self._plain[sampling] = PlainText(self.model, self.prompt, self.tokens, sampling)
        return self._plain[sampling]

    def spread(self, ids: Sequence[int], first: int) -> list[float]:
        """How far apart mlx-lm's own logits are, fed in many ways: of each token from one on."""
        if (key := (first, *ids)) not in self._spread:
            self._spread[key] = self.oracle.spread(ids, first)
        return self._spread[key]


def _widest_window(caches: Iterable[Rollbackable]) -> int:
    """Rows of the widest sliding window; 0 without one."""
    windows = [cache for cache in caches if isinstance(cache, RewindableRotatingKVCache)]
    return max((int(cache.max_size) for cache in windows), default=0)
