"""What a caller can ask of the choice of tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal, final

import attrs

from speculate.errors import OptionError

Mode = Literal["coupled", "rejection", "block"]
MODES: Final = ("coupled", "rejection", "block")


@final
@attrs.frozen(kw_only=True)
class Sampling:
    """How tokens are chosen: mlx-lm's options, and how drafts are judged.

    The filters apply in mlx-lm's order: penalties and bias, log-probabilities, top-p,
    min-p, XTC, top-k, temperature.

    Attributes:
        temperature: 0 takes the most likely token, whatever the filters say.
        top_p: Keep the most likely tokens that have this much probability together; 0 or 1
            keeps all.
        top_k: Keep this many of the most likely tokens; 0 keeps all.
        min_p: Keep tokens at least this likely, relative to the most likely one.
        min_tokens_to_keep: Tokens that `min_p` leaves in any case.
        xtc_probability: How often XTC removes the most likely tokens.
        xtc_threshold: XTC removes all tokens above it but the least likely of them.
        xtc_special_tokens: Ids that XTC never removes.
        repetition_penalty: Divides (or, below zero, multiplies) the logits of tokens in the
            newest `repetition_context_size` tokens.
        repetition_context_size: In tokens.
        presence_penalty: Subtracted from the logits of such tokens once.
        presence_context_size: In tokens.
        frequency_penalty: Subtracted as often as the token occurs.
        frequency_context_size: In tokens.
        logit_bias: Added to the logits of the given ids.
        seed: The same seed gives the same text. `None` draws one, which the stats report.
        mode: "coupled": the same seed gives the same text whoever drafts. "rejection" and
            "block": the same distribution and more accepted drafts, not the same text.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    min_tokens_to_keep: int = 1
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    xtc_special_tokens: Sequence[int] = ()
    repetition_penalty: float | None = None
    repetition_context_size: int = 20
    presence_penalty: float | None = None
    presence_context_size: int = 20
    frequency_penalty: float | None = None
    frequency_context_size: int = 20
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    mode: Mode = "coupled"

    def __attrs_post_init__(self) -> None:
        whole = self.seed is None or isinstance(self.seed, int)
        _require(whole, "seed must be a whole number or None", self.seed)
        _require(
            self.temperature == 0 or 1e-6 <= self.temperature < math.inf,
            "temperature must be 0 or from 1e-6 up",
            self.temperature,
        )
        _require(0 <= self.top_p <= 1, "top_p must be from 0 to 1", self.top_p)
        _require(self.top_k >= 0, "top_k must not be negative", self.top_k)
        _require(0 <= self.min_p <= 1, "min_p must be from 0 to 1", self.min_p)
        _require(
            self.min_tokens_to_keep >= 1,
            "min_tokens_to_keep must be at least 1",
            self.min_tokens_to_keep,
        )
        _require(
            0 <= self.xtc_probability <= 1,
            "xtc_probability must be from 0 to 1",
            self.xtc_probability,
        )
        _require(
            0 <= self.xtc_threshold <= 0.5,
            "xtc_threshold must be from 0 to 0.5",
            self.xtc_threshold,
        )
        penalty = self.repetition_penalty
        _require(
            penalty is None or penalty >= 0, "repetition_penalty must not be negative", penalty
        )
        for name in ("repetition", "presence", "frequency"):
            size: int = getattr(self, f"{name}_context_size")
            _require(size >= 1, f"{name}_context_size must be at least 1", size)
        _require(self.mode in MODES, f"mode must be one of {', '.join(MODES)}", self.mode)

    def check_ids(self, vocab_size: int) -> None:
        """Refuse ids that a model does not have: MLX would write outside of its arrays.

        Raises:
            OptionError: Names the first such id.
        """
        for id_ in (*self.xtc_special_tokens, *(self.logit_bias or ())):
            _require(0 <= id_ < vocab_size, f"ids must be from 0 to {vocab_size - 1}", id_)


def _require(holds: bool, what: str, value: object) -> None:
    if not holds:
        raise OptionError(f"{what}, got {value!r}")
