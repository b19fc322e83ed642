"""The model under verification, its drafters, and the sequence that checks feed to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final, final

from speculate.backends.rotating import RewindableRotatingKVCache
from speculate.errors import OptionError
from speculate.models.adapter import StockAdapter
from speculate.protocols import Rollbackable, SpeculativeModel, StockModel
from speculate.sampling.options import Sampling
from speculate.verify.drafters import Drafter
from speculate.verify.oracle import Oracle, ReferenceSequence
from speculate.verify.rounding import Difference, Rounding

PROMPT_TOKENS: Final = 32
"""Tokens of the shortest prompt, and of the sequence whose rounding is measured."""

BEYOND_WINDOWS: Final = 10
"""Tokens of a prompt beyond two full sliding windows."""

MAX_FILLED_WINDOW: Final = 256
"""Widest sliding window, in rows, that prompts fill twice. For wider windows only the rewind check
goes that far: it feeds the long prefix once, the decoding checks would once per run."""


@final
class VerificationTarget:
    """The model under verification.

    Args:
        model: The model.
        ids: Token ids from which prompts are taken, repeated from the start where they end.
        drafters: Proposers to verify with the model.
        stock: mlx-lm's model that `model` drives. By default that of a `StockAdapter`; without
            one the model is compared with itself.
        tokens: Number of tokens decoded in each run.
        seed: Seed of sampled runs.

    Attributes:
        oracle: Computes expected logits.
        window: Rows of the widest sliding window; 0 without one.

    Raises:
        OptionError: `tokens` is below 1, or `ids` is empty or has ids outside the vocabulary.
        CannotRewindError: A layer has a cache that cannot be rewound.
    """

    def __init__(
        self,
        model: SpeculativeModel,
        ids: Sequence[int],
        *,
        drafters: Iterable[Drafter] = (),
        stock: StockModel | None = None,
        tokens: int = 32,
        seed: int = 0,
    ) -> None:
        if tokens < 1:
            raise OptionError(f"tokens must be at least 1, got {tokens}")
        if not ids or not all(0 <= id_ < model.vocab_size for id_ in ids):
            raise OptionError(f"ids must not be empty, and all below {model.vocab_size}")
        if stock is None and isinstance(model, StockAdapter):
            stock = model.stock
        self.model = model
        self.drafters: list[Drafter] = list(drafters)
        self.oracle: Oracle = Oracle(model, stock)
        self.tokens = tokens
        self.seed = seed
        self.window: int = _widest_window(model.make_cache())
        self._ids = list(ids)
        self._references: dict[Sampling, ReferenceSequence] = {}
        self._spreads: dict[tuple[int, ...], list[float]] = {}

    def ids(self, start: int, stop: int) -> list[int]:
        """Tokens `start` to `stop` of the endless repetition of `ids`."""
        return [self._ids[position % len(self._ids)] for position in range(start, stop)]

    @property
    def prompt(self) -> list[int]:
        """The prompt of every decoding run."""
        twice = 2 * self.window + BEYOND_WINDOWS if 0 < self.window <= MAX_FILLED_WINDOW else 0
        return self.ids(0, max(PROMPT_TOKENS, twice))

    @cached_property
    def rounding(self) -> Rounding:
        """Rounding of this model on this machine, measured on first use."""
        return Rounding(self.oracle.noise(self.ids(0, PROMPT_TOKENS), self.window))

    def reference(self, sampling: Sampling) -> ReferenceSequence:
        """The sequence that plain decoding continues the prompt with. Decoded once."""
        if sampling not in self._references:
            made = ReferenceSequence(self.model, self.prompt, self.tokens, sampling)
            self._references[sampling] = made
        return self._references[sampling]

    def spread(self, ids: Sequence[int], first: int) -> list[float]:
        """`Oracle.spread` of a sequence. Measured once."""
        if (key := (first, *ids)) not in self._spreads:
            self._spreads[key] = self.oracle.spread(ids, first)
        return self._spreads[key]

    def recheck(
        self, differences: Sequence[Difference], ids: Sequence[int], first: int, position: int
    ) -> list[Difference]:
        """Classify suspected mistakes of a sequence again: see `Rounding.recheck`.

        `first` is the index of the first token whose logits were compared, and `position` what
        the differences call it.
        """
        return self.rounding.recheck(differences, lambda: self.spread(ids, first), position)


def _widest_window(caches: Iterable[Rollbackable]) -> int:
    """Rows of the widest sliding window; 0 without one."""
    windows = [cache for cache in caches if isinstance(cache, RewindableRotatingKVCache)]
    return max((int(cache.max_size) for cache in windows), default=0)
