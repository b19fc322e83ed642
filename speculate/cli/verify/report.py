"""What was checked, for people to paste and for programs to read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, final

import attrs

from speculate.cli.machine import device, versions
from speculate.cli.printing import finite, printable
from speculate.testing.verify import Case, Difference, Result
from speculate.testing.verify.results import Outcome, counted

SHOWN: Final = 3
"""Mistakes that a check found and that are told one by one."""


@final
@attrs.frozen
class Checked:
    """A check that was made.

    Attributes:
        check: Which one.
        case: Of what.
        outcome: What came of it.
        compared: Rows, tokens, rounds or cases.
        unit: Which of these.
        figure: The finding, in a line.
        differences: All that was not equal.
    """

    check: str
    case: str
    outcome: Outcome
    compared: int
    unit: str
    figure: str
    differences: Sequence[Difference]

    @classmethod
    def of(cls, case: Case, result: Result) -> Checked:
        """A case and its result."""
        figure, unit = result.figure(), result.unit
        found = (result.outcome, result.compared, unit, figure, list(result.differences))
        return cls(case.check, case.name, *found)


@final
@attrs.define
class Verified:
    """A model, and what was found.

    Attributes:
        name: As on the command line.
        about: What it is, in words, by what is told.
        noise: How far mlx-lm's own logits of a text were apart, fed in blocks and one by one.
        planned: Checks that are to be made.
        checks: Those that were.
    """

    name: str
    about: Mapping[str, str]
    noise: float
    planned: int = 0
    checks: list[Checked] = attrs.Factory(list)

    @property
    def outcome(self) -> Outcome:
        """The worst that was found."""
        return worst(check.outcome for check in self.checks)


@final
@attrs.define
class Report:
    """A run of the command.

    Attributes:
        tokens: Of each text.
        versions: Of what took part, by name.
        device: Where it ran.
        models: What was checked.
        interrupted: There should have been more.
    """

    tokens: int
    versions: Mapping[str, str] = attrs.Factory(versions)
    device: str = attrs.Factory(device)
    models: list[Verified] = attrs.Factory(list)
    interrupted: bool = False

    @property
    def outcome(self) -> Outcome:
        """The worst that was found."""
        return worst(model.outcome for model in self.models)


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """Of several; `OK` of none."""
    found = set(outcomes)
    return "BUG" if "BUG" in found else "NUMERICS" if "NUMERICS" in found else "OK"


def as_json(report: Report) -> str:
    """All of it, differences one by one."""
    found = attrs.asdict(report)
    found["outcome"] = report.outcome
    return json.dumps(finite(found), indent=1, allow_nan=False)


def as_text(report: Report) -> Iterator[str]:
    """Lines to read, and to paste."""
    checks = [check for model in report.models for check in model.checks]
    compared = counted(sum(check.compared for check in checks), "comparisons")
    differences = counted(sum(len(check.differences) for check in checks), "differences")
    yield f"speculate verify: {_said(report)}"
    yield f"{differences} in {compared}, by {counted(len(checks), 'checks')}"
    yield ""
    yield ", ".join(f"{name} {version}" for name, version in report.versions.items())
    yield report.device
    for model in report.models:
        yield ""
        yield from _model(model)
    yield ""
    yield from _footer(report)


def _said(report: Report) -> str:
    outcome: str = report.outcome
    if report.interrupted:
        return f"{outcome} so far, interrupted"
    return outcome


def _model(model: Verified) -> Iterator[str]:
    yield printable(model.name)
    for name, about in model.about.items():
        yield f"  {name:<9} {printable(about)}"
    noise = "equal" if model.noise == 0 else f"up to {model.noise:.3g} apart"
    yield f"  rounding  of mlx-lm's own logits, in blocks and one by one: {noise}"
    width = max((len(check.case) for check in model.checks), default=0)
    for check in model.checks:
        case = printable(f"{check.case:<{width}}")
        yield f"  {check.outcome:<9} {check.check:<10}  {case}  {check.figure}"
        # Rounding is everywhere where it is at all: its places tell nothing.
        wrong = [difference for difference in check.differences if difference.kind == "bug"]
        for difference in wrong[:SHOWN]:
            yield f"    {printable(difference.line())}"
        if len(wrong) > SHOWN:
            yield f"    and {len(wrong) - SHOWN} more"
    if missing := model.planned - len(model.checks):
        yield f"  not made: {missing} of {model.planned} checks"


def _footer(report: Report) -> Iterator[str]:
    if report.outcome == "BUG":
        yield "Something is WRONG: please report it, with all of the above."
    elif report.outcome == "NUMERICS":
        yield "Nothing is wrong: what differs is within what rounding does on this machine."
    yield (
        f"Texts were of {report.tokens} tokens: --tokens {8 * report.tokens} follows longer ones, "
        "and takes longer."
    )
