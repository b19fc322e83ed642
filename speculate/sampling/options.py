"""`Sampling`: the options that decide how tokens are chosen."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
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

MIN_TEMPERATURE: Final = 1e-6
"""Lowest temperature above 0. Anything lower is greedy decoding, which 0 requests."""


@final
@attrs.frozen(kw_only=True)
class Sampling:
    """How tokens are chosen: mlx-lm's options, and how drafts are verified.

    The filters apply in mlx-lm's order: penalties and bias, log-probabilities, top-p,
    min-p, XTC, top-k, temperature.

    Attributes:
        temperature: 0 takes the most likely token, regardless of the filters.
        top_p: Keep the most likely tokens whose total probability is at least this; 0 or 1
            keeps all.
        top_k: Keep this many of the most likely tokens; 0 keeps all.
        min_p: Keep tokens at least this likely, relative to the most likely one.
        min_tokens_to_keep: Number of tokens that `min_p` keeps in any case.
        xtc_probability: Probability that XTC removes top choices at a position.
        xtc_threshold: Probability above which a token is a top choice. XTC removes all top choices
            but the least likely one.
        xtc_special_tokens: Ids that XTC never removes.
        repetition_penalty: Divides the positive logits, and multiplies the negative ones, of
            tokens that occur in the last `repetition_context_size` tokens.
        repetition_context_size: Tokens considered by the repetition penalty.
        presence_penalty: Subtracted once from the logits of tokens that occur in the last
            `presence_context_size` tokens.
        presence_context_size: Tokens considered by the presence penalty.
        frequency_penalty: Subtracted once per occurrence in the last `frequency_context_size`
            tokens.
        frequency_context_size: Tokens considered by the frequency penalty.
        logit_bias: Token id -> amount added to its logit.
        seed: The same seed gives the same output. `None` draws a seed, which the stats report.
        mode: How drafts are verified above temperature 0. "coupled": the same seed gives the
            same output regardless of the proposer. "rejection" and "block": the same
            distribution and more accepted drafts, but not the same output.
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
            # Stores plain Python numbers in place of NumPy's. attrs documents this way to set a
            # field of a frozen class.
            object.__setattr__(self, name, validated(name, getattr(self, name)))
        validated_choice("mode", self.mode, MODES)

    def check_ids(self, vocab_size: int) -> None:
        """Raise for ids that a model does not have: MLX would write outside of its arrays.

        Raises:
            OptionError: An id is out of range; the message names the first one.
        """
        validated_ids("xtc_special_tokens", self.xtc_special_tokens, vocab_size)
        validated_ids("logit_bias", self.logit_bias or (), vocab_size)


def _temperature(name: str, value: object) -> float:
    found = validated_number(name, value, 0)
    if 0 < found < MIN_TEMPERATURE:
        refuse(name, f"0 or a number of at least {MIN_TEMPERATURE}", value)
    return found


def _penalty(name: str, value: object, low: float | None = None) -> float | None:
    return None if value is None else validated_number(name, value, low)


def _bias(name: str, value: object) -> Mapping[int, float] | None:
    """Amounts by id. Minus infinity, which excludes a token, is allowed; NaN is not."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        refuse(name, "a mapping from token ids to numbers, as {3: 1.5}", value)
    return {
        id_: amount if amount == -math.inf else validated_number(f"{name}[{id_}]", amount)
        for id_, amount in zip(validated_ids(name, value), value.values(), strict=True)
    }


_probability = partial(validated_number, low=0, high=1)
_at_least_one = partial(validated_integer, low=1)

_VALIDATED: Final[Mapping[str, Callable[[str, object], object]]] = {
    "temperature": _temperature,
    "top_p": _probability,
    "top_k": partial(validated_integer, low=0),
    "min_p": _probability,
    "min_tokens_to_keep": _at_least_one,
    "xtc_probability": _probability,
    "xtc_threshold": partial(validated_number, low=0, high=0.5),
    "xtc_special_tokens": lambda name, value: tuple(validated_ids(name, value)),
    "repetition_penalty": partial(_penalty, low=0),
    "repetition_context_size": _at_least_one,
    "presence_penalty": _penalty,
    "presence_context_size": _at_least_one,
    "frequency_penalty": _penalty,
    "frequency_context_size": _at_least_one,
    "logit_bias": _bias,
    "seed": validated_optional_integer,
}
"""Option name -> function that validates its value and converts it to plain Python."""
