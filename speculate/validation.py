"""Option checks. Each error names the option, the allowed values and the given value.

Checks return plain Python values, so that NumPy integers are not passed on to MLX.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NoReturn, TypeVar, cast

from speculate.errors import OptionError

FunctionT = TypeVar("FunctionT")

MAX_SHOWN: Final = 200
"""Longest value that an error quotes in full, in characters."""


def refuse(name: str, allowed: str, value: object) -> NoReturn:
    """Raise an error for an invalid option.

    Args:
        name: Name of the option.
        allowed: The allowed values, such as "an integer from 0 to 48".
        value: The given value.

    Raises:
        OptionError: Always.
    """
    given = repr(value)
    if len(given) > MAX_SHOWN:
        given = given[:MAX_SHOWN] + " ..."
    raise OptionError(f"{name} must be {allowed}, got {given}")


def validated_integer(
    name: str,
    value: object,
    low: int | None = None,
    high: int | None = None,
    *,
    among: Sequence[int] = (),
    note: str = "",
) -> int:
    """Validate an integer; `True` and `False` are refused.

    Args:
        name: Name of the option.
        value: The given value: an `int` or another library's integer.
        low: Smallest allowed value, if any.
        high: Largest allowed value, if any; needs `low`.
        among: The allowed integers; if empty, the whole range.
        note: Added to the allowed values in the error, in parentheses.

    Raises:
        OptionError: The value is not an integer or is out of range.
    """
    found = None if isinstance(value, bool) else _index(value)
    if among and found not in among:
        refuse(name, f"one of {', '.join(map(str, among))}", value)
    if found is None or not _within(found, low, high):
        _refuse_range(name, "an integer", low, high, note, value)
    return found


def validated_optional_integer(
    name: str, value: object, low: int | None = None, note: str = ""
) -> int | None:
    """Validate an integer of at least `low`, or `None`.

    Raises:
        OptionError: The value is neither.
    """
    note = f"{note}; or None" if note else "or None"
    return None if value is None else validated_integer(name, value, low, note=note)


def validated_number(
    name: str, value: object, low: float | None = None, high: float | None = None
) -> float:
    """Validate a finite number; `True` and `False` are refused.

    Raises:
        OptionError: The value is not a number, not finite or out of range.
    """
    found = math.nan
    if not isinstance(value, bool) and isinstance(value, numbers.Real):
        found = float(value)
    if not math.isfinite(found) or not _within(found, low, high):
        kind = "a finite number" if low is None else "a number"
        _refuse_range(name, kind, low, high, "", value)
    return found


def validated_choice(name: str, value: object, choices: Sequence[str | None]) -> None:
    """Validate one of a few words.

    Raises:
        OptionError: The value is not one of them.
    """
    if not isinstance(value, str | None) or value not in choices:
        *first, last = map(repr, choices)
        refuse(name, f"{', '.join(first)} or {last}", value)


def validated_flag(name: str, value: object) -> None:
    """Validate a bool; other truthy values such as "no" are refused.

    Raises:
        OptionError: The value is not a bool.
    """
    if not isinstance(value, bool):
        refuse(name, "True or False", value)


def validated_text(name: str, value: object) -> str:
    """Validate a string that is not empty.

    Raises:
        OptionError: The value is empty or not a string.
    """
    if not isinstance(value, str) or not value:
        refuse(name, "text, and not empty", value)
    return value


def validated_function(name: str, value: FunctionT) -> FunctionT:
    """Validate a callable or `None`.

    Raises:
        OptionError: The value is neither.
    """
    if value is not None and not callable(value):
        refuse(name, "a function or None", value)
    return value


def validated_ids(name: str, ids: object, vocab_size: int | None = None) -> list[int]:
    """Validate token ids, because MLX does not check embedding indices.

    Args:
        name: Name of the option.
        ids: An iterable of integers; one-dimensional arrays are allowed.
        vocab_size: Size of the vocabulary, if known.

    Returns:
        The ids as Python integers.

    Raises:
        OptionError: An id is not an integer or is out of range.
    """
    allowed = "token ids"
    allowed += " of at least 0" if vocab_size is None else f" from 0 to {vocab_size - 1}"
    try:
        plain = plain_ids(ids)
    except TypeError:
        refuse(name, allowed, ids)
    high = None if vocab_size is None else vocab_size - 1
    wrong = next((id_ for id_ in plain if not _within(id_, 0, high)), None)
    if wrong is not None:
        refuse(name, allowed, wrong)
    return plain


def plain_ids(ids: object) -> list[int]:
    """Convert integers of any kind to Python's. Bytes and strings are refused.

    Raises:
        TypeError: The values are not integers.
    """
    if isinstance(ids, str | bytes | bytearray):
        raise TypeError(f"{type(ids).__name__} holds no token ids")
    return [operator.index(id_) for id_ in cast("Iterable[int]", ids)]


def validated_mapping(name: str, value: object) -> None:
    """Validate a mapping or `None`.

    Raises:
        OptionError: The value is neither.
    """
    if value is not None and not isinstance(value, Mapping):
        refuse(name, "a mapping or None", value)


def _index(value: object) -> int | None:
    try:
        return operator.index(cast(int, value))
    except TypeError:
        return None


def _within(value: float, low: float | None, high: float | None) -> bool:
    return (low is None or value >= low) and (high is None or value <= high)


def _refuse_range(
    name: str,
    kind: str,
    low: float | None,
    high: float | None,
    note: str,
    value: object,
) -> NoReturn:
    allowed = kind
    if low is not None:
        allowed += f" of at least {low}" if high is None else f" from {low} to {high}"
    refuse(name, f"{allowed} ({note})" if note else allowed, value)
