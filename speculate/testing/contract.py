"""How a contract reports a violation: one error that names contract, round and position."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar, cast, final
from unittest import SkipTest

import mlx.core as mx

from speculate.errors import SpeculateError

P = ParamSpec("P")
T = TypeVar("T")


class InjectedError(Exception):
    """Raised by tests to make a forward or a draft fail."""


class MissingPackageError(ImportError):
    """A package that a contract needs is not installed."""


@final
class ContractError(SpeculateError, AssertionError):
    """An implementation violates a contract of its protocol.

    Attributes:
        detail: What was found and what was expected.
        contract: The contract in words: the name of its test without `test_`.
        round: Index of the round or step of the test, from 0, if known.
        position: Position in the sequence, in tokens, if known.
    """

    def __init__(
        self,
        detail: str,
        *,
        contract: str = "",
        round: int | None = None,
        position: int | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.contract = contract
        self.round = round
        self.position = position

    def __str__(self) -> str:
        places = [("round", self.round), ("position", self.position)]
        where = ", ".join(f"{name} {value}" for name, value in places if value is not None)
        return f"{self.contract}: {where + ': ' if where else ''}{self.detail}"


def contract(check: Callable[P, T]) -> Callable[P, T]:
    """Mark a function as a contract: every error in it becomes a `ContractError` of its name."""
    name = check.__name__.removeprefix("test_").replace("_", " ")

    @wraps(check)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            with at_step():
                return check(*args, **kwargs)
        except ContractError as error:
            error.contract = error.contract or name
            raise

    return checked


@contextmanager
def at_step(round: int | None = None, position: int | None = None) -> Iterator[None]:
    """Attach round and position to violations, and turn other errors into violations.

    Raises:
        ContractError: The body raised it, or raised another `Exception`.
        SkipTest: The body skipped its test.
        MissingPackageError: The body needs a package that is not installed.
    """
    try:
        yield
    except ContractError as error:
        error.round = round if error.round is None else error.round
        error.position = position if error.position is None else error.position
        raise
    except (SkipTest, MissingPackageError):
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        frame = traceback.extract_tb(error.__traceback__)[-1]
        detail = f"raised {what} ({Path(frame.filename).name}:{frame.lineno})"
        raise ContractError(detail, round=round, position=position) from error


def require(holds: bool, detail: str) -> None:
    """Raise a `ContractError` that says what was found unless a condition holds."""
    if not holds:
        raise ContractError(detail)


@contextmanager
def refused(error: type[SpeculateError], detail: str) -> Iterator[None]:
    """Raise a `ContractError` that says what was accepted unless the body raises an error."""
    try:
        yield
    except error:
        return
    raise ContractError(detail)


@contextmanager
def same_random_state() -> Iterator[None]:
    """Check that the body draws neither from `mx.random` nor from `random`."""
    mx.random.seed(5)
    before, python_before = _random_state(), random.getstate()
    yield
    require(before == _random_state(), "draws from mx.random")
    require(python_before == random.getstate(), "draws from random")


def _random_state() -> list[object]:
    return [state.tolist() for state in cast("list[mx.array]", mx.random.state)]
