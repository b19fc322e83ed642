"""What a caller can ask of the choice of tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, final

import attrs

from speculate.validation import (
    refuse,
    validated_choice,
    validated_ids,
    validated_integer,
    validated_number,
    validated_optional_integer,
)

Mode = Literal["coupled", "rejection", "block"]
MODES: Final = ("coupled", "rejection", "block")

COLDEST: Final = 1e-6
"""Least temperature above 0. Anything colder is greedy decoding, which 0 asks for."""


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
        for name, validated in _VALIDATED.items():
            # As attrs says it for what is frozen: NumPy's numbers become Python's.
            object.__setattr__(self, name, validated(name, getattr(self, name)))
        validated_choice("mode", self.mode, MODES)

    def check_ids(self, vocab_size: int) -> None:
        """Refuse ids that a model does not have: MLX would write outside of its arrays.

        Raises:
            OptionError: Names the first such id.
        """
        validated_ids("xtc_special_tokens", self.xtc_special_tokens, vocab_size)
        validated_ids("logit_bias", self.logit_bias or (), vocab_size)


def _temperature(name: str, value: object) -> float:
    found = validated_number(name, value, 0)
    if 0 < found < COLDEST:
        refuse(name, f"0 or a number of at least {COLDEST}", value)
    return found


def _probability(name: str, value: object) -> float:
    return validated_number(name, value, 0, 1)


def _xtc_threshold(name: str, value: object) -> float:
    return validated_number(name, value, 0, 0.5)


def _penalty(name: str, value: object) -> float | None:
    return None if value is None else validated_number(name, value)


def _factor(name: str, value: object) -> float | None:
    return None if value is None else validated_number(name, value, 0)


def _at_least_one(name: str, value: object) -> int:
    return validated_integer(name, value, 1)


def _bias(name: str, value: object) -> Mapping[int, float] | None:
    """Amounts by id. Minus infinity, which rules a token out, is one; no number is none."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        refuse(name, "a mapping from token ids to numbers, as {3: 1.5}", value)
    ids = validated_ids(name, value)
    amounts = [
        amount if amount == -math.inf else validated_number(f"{name}[{id_}]", amount)
        for id_, amount in zip(ids, value.values(), strict=True)
    ]
    return dict(zip(ids, amounts, strict=True))


def _special(name: str, value: object) -> Sequence[int]:
    return tuple(validated_ids(name, value))


_VALIDATED: Final[Mapping[str, Callable[[str, object], object]]] = {
    "temperature": _temperature,
    "top_p": _probability,
    "top_k": lambda name, value: validated_integer(name, value, 0),
    "min_p": _probability,
    "min_tokens_to_keep": _at_least_one,
    "xtc_probability": _probability,
    "xtc_threshold": _xtc_threshold,
    "xtc_special_tokens": _special,
    "repetition_penalty": _factor,
    "repetition_context_size": _at_least_one,
    "presence_penalty": _penalty,
    "presence_context_size": _at_least_one,
    "frequency_penalty": _penalty,
    "frequency_context_size": _at_least_one,
    "logit_bias": _bias,
    "seed": validated_optional_integer,
}
"""How each option is checked, and turned into plain Python."""
