"""Option checks: each raises an `OptionError` that names the option and the allowed values.

Checks return plain Python values, so that NumPy integers are not passed on to MLX.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn, TypeVar, cast

from speculate.errors import OptionError

FunctionT = TypeVar("FunctionT")


def refuse(name: str, allowed: str, value: object) -> NoReturn:
    """Raise an `OptionError`: option `name` has a value that is not `allowed`, "an integer" say."""
    given = repr(value)
    if len(given) > 200:
        given = given[:200] + " ..."
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
    """Validate an integer in a range, or one of `among`; `True` and `False` are refused.

    The error adds `note` to the allowed values, in parentheses. `high` needs `low`.
    """
    try:
        found = None if isinstance(value, bool) else operator.index(cast(int, value))
    except TypeError:
        found = None
    if among and found not in among:
        refuse(name, f"one of {', '.join(map(str, among))}", value)
    if found is None or not _within(found, low, high):
        allowed = "an integer" + _range(low, high)
        refuse(name, f"{allowed} ({note})" if note else allowed, value)
    return found


def validated_optional_integer(
    name: str, value: object, low: int | None = None, note: str = ""
) -> int | None:
    """Validate an integer of at least `low`, or `None`."""
    note = f"{note}; or None" if note else "or None"
    return None if value is None else validated_integer(name, value, low, note=note)


def validated_number(
    name: str, value: object, low: float | None = None, high: float | None = None
) -> float:
    """Validate a finite number; `True` and `False` are refused."""
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    found = float(cast(float, value)) if number else math.nan
    if not math.isfinite(found) or not _within(found, low, high):
        refuse(name, "a finite number" if low is None else "a number" + _range(low, high), value)
    return found


def validated_choice(name: str, value: object, choices: Sequence[str | None]) -> None:
    """Validate one of a few words."""
    if not isinstance(value, str | None) or value not in choices:
        *first, last = map(repr, choices)
        refuse(name, f"{', '.join(first)} or {last}", value)


def validated_flag(name: str, value: object) -> None:
    """Validate a bool; other truthy values such as "no" are refused."""
    if not isinstance(value, bool):
        refuse(name, "True or False", value)


def validated_text(name: str, value: object) -> str:
    """Validate a string that is not empty."""
    if not isinstance(value, str) or not value:
        refuse(name, "text, and not empty", value)
    return value


def validated_function(name: str, value: FunctionT) -> FunctionT:
    """Validate a callable or `None`."""
    if value is not None and not callable(value):
        refuse(name, "a function or None", value)
    return value


def validated_mapping(name: str, value: object) -> None:
    """Validate a mapping or `None`."""
    if not isinstance(value, Mapping | None):
        refuse(name, "a mapping or None", value)


def validated_ids(name: str, ids: object, vocab_size: int | None = None) -> list[int]:
    """Validate an iterable of token ids, because MLX does not check embedding indices."""
    high = None if vocab_size is None else vocab_size - 1
    allowed = "token ids" + _range(0, high)
    try:
        plain = plain_ids(ids)
    except TypeError:
        refuse(name, allowed, ids)
    for id_ in plain:
        if not _within(id_, 0, high):
            refuse(name, allowed, id_)
    return plain


def plain_ids(ids: object) -> list[int]:
    """Convert integers of any kind to Python's. Bytes and strings are refused.

    Raises:
        TypeError: The values are not integers.
    """
    if isinstance(ids, str | bytes | bytearray):
        raise TypeError(f"{type(ids).__name__} holds no token ids")
    return [operator.index(id_) for id_ in cast("Iterable[int]", ids)]


def _within(value: float, low: float | None, high: float | None) -> bool:
    return (low is None or value >= low) and (high is None or value <= high)


def _range(low: float | None, high: float | None) -> str:
    if low is None:
        return ""
    return f" of at least {low}" if high is None else f" from {low} to {high}"
