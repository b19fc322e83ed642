"""Checks of options: each names the option, what is allowed, and the value that was given.

They return plain Python values, so that integers of NumPy do not go on into MLX.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NoReturn, TypeVar, cast

from speculate.errors import OptionError

FunctionT = TypeVar("FunctionT")

SHOWN: Final = 200
"""Most characters that are shown of a value."""


def refuse(name: str, allowed: str, value: object) -> NoReturn:
    """Raise for an option that cannot be used.

    Args:
        name: The option's.
        allowed: What it must be, as "an integer from 0 to 48".
        value: What was given.

    Raises:
        OptionError: Always.
    """
    given = repr(value)
    if len(given) > SHOWN:
        given = given[:SHOWN] + " ..."
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
    """An integer in a range. `True` and `False` are none.

    Args:
        name: The option's name.
        value: What was given: an `int`, or another library's.
        low: Least that is allowed, if there is one.
        high: Most that is allowed, if there is one; only together with `low`.
        among: The only integers that are allowed; none given, any in the range.
        note: Said after what is allowed, in parentheses.

    Raises:
        OptionError: It is no integer, or out of range.
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
    """An integer of at least `low`, or `None`.

    Raises:
        OptionError: It is neither.
    """
    note = f"{note}; or None" if note else "or None"
    return None if value is None else validated_integer(name, value, low, note=note)


def validated_number(
    name: str, value: object, low: float | None = None, high: float | None = None
) -> float:
    """A finite number in a range. `True` and `False` are none.

    Raises:
        OptionError: It is no number, not finite, or out of range.
    """
    found = math.nan
    if not isinstance(value, bool) and isinstance(value, numbers.Real):
        found = float(value)
    if not math.isfinite(found) or not _within(found, low, high):
        kind = "a finite number" if low is None else "a number"
        _refuse_range(name, kind, low, high, "", value)
    return found


def validated_choice(name: str, value: object, choices: Sequence[str | None]) -> None:
    """Refuse what is not among a few words.

    Raises:
        OptionError: It is not among them.
    """
    if not isinstance(value, str | None) or value not in choices:
        *first, last = map(repr, choices)
        refuse(name, f"{', '.join(first)} or {last}", value)


def validated_flag(name: str, value: object) -> None:
    """Refuse what is neither `True` nor `False`: "no" would count as true.

    Raises:
        OptionError: It is neither.
    """
    if not isinstance(value, bool):
        refuse(name, "True or False", value)


def validated_text(name: str, value: object) -> str:
    """Refuse what is no text, or is empty.

    Raises:
        OptionError: It is.
    """
    if not isinstance(value, str) or not value:
        refuse(name, "text, and not empty", value)
    return value


def validated_function(name: str, value: FunctionT) -> FunctionT:
    """Refuse what cannot be called and is not `None`.

    Raises:
        OptionError: It cannot.
    """
    if value is not None and not callable(value):
        refuse(name, "a function or None", value)
    return value


def validated_ids(name: str, ids: object, vocab_size: int | None = None) -> list[int]:
    """Token ids on the host: MLX does not check what it looks up.

    Args:
        name: The option's name.
        ids: Integers, in any iterable, an array of one axis among them.
        vocab_size: How many the model has, where that is known.

    Raises:
        OptionError: They are no integers, or out of range.
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
    """Integers of any kind as Python's. Those of bytes and of text are no ids.

    Raises:
        TypeError: They are no integers.
    """
    if isinstance(ids, str | bytes | bytearray):
        raise TypeError(f"{type(ids).__name__} holds no token ids")
    return [operator.index(id_) for id_ in cast("Iterable[int]", ids)]


def validated_mapping(name: str, value: object) -> None:
    """Refuse what is neither a mapping nor `None`.

    Raises:
        OptionError: It is neither.
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
