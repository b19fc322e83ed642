"""How a law says that it does not hold: one error, which names the law, the round and the place."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar, final

from speculate.errors import SpeculateError

P = ParamSpec("P")
T = TypeVar("T")


@final
class BrokenLawError(SpeculateError, AssertionError):
    """A part breaks a law of its protocol.

    Attributes:
        detail: What was found, and what was expected.
        law: Which law, in words.
        round: In which round or step of the law's run, 0 for the first.
        position: At which position of the text.
    """

    def __init__(
        self, detail: str, *, law: str = "", round: int | None = None, position: int | None = None
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.law = law
        self.round = round
        self.position = position

    def __str__(self) -> str:
        places = [("round", self.round), ("position", self.position)]
        told = ", ".join(f"{name} {at}" for name, at in places if at is not None)
        return f"{self.law}: {told + ': ' if told else ''}{self.detail}"


def law(check: Callable[P, T]) -> Callable[P, T]:
    """Make a function a law: whatever goes wrong in it is a `BrokenLawError` of its name."""
    name = check.__name__.replace("_", " ")

    @wraps(check)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            with at():
                return check(*args, **kwargs)
        except BrokenLawError as broken:
            broken.law = broken.law or name
            raise

    return checked


@contextmanager
def at(round: int | None = None, position: int | None = None) -> Iterator[None]:
    """Say where in a law's run something broke. Errors of the part count as broken, too."""
    try:
        yield
    except BrokenLawError as broken:
        broken.round = round if broken.round is None else broken.round
        broken.position = position if broken.position is None else broken.position
        raise
    except Exception as error:
        told = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        detail = f"raised {told} ({_where(error)})"
        raise BrokenLawError(detail, round=round, position=position) from error


def _where(error: Exception) -> str:
    """File and line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "nowhere"


def require(holds: bool, detail: str) -> None:
    """Break the law unless something holds.

    Raises:
        BrokenLawError: It does not.
    """
    if not holds:
        raise BrokenLawError(detail)
