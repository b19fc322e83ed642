"""The report of `speculate verify`, as text and as JSON."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast, final

import attrs
import mlx.core as mx
from mlx.utils import tree_flatten

from speculate import verify
from speculate.checkpoints.folder import summarize_error
from speculate.cli._arguments import STANDARD_STREAM
from speculate.cli._console import ProgressBars, as_json, device, printable, versions, writing
from speculate.errors import CheckpointError
from speculate.protocols import StockModel
from speculate.verify.rounding import Outcome, counted

if TYPE_CHECKING:
    from mlx.nn.layers.base import Module

MAX_SHOWN: Final = 3
"""Wrong positions of one check that the text report lists."""


@final
@attrs.frozen
class CheckReport:
    """A check of a case, and its result in one line. All fields of reports are keys of the JSON."""

    check: str
    case: str
    outcome: Outcome
    compared: int
    unit: str
    figure: str
    differences: Sequence[verify.Difference]


@final
@attrs.define
class ModelReport:
    """A model with the checks that were run, of those that were planned."""

    name: str
    about: Mapping[str, str]
    noise: float  # Of mlx-lm's own logits, fed in blocks and token by token.
    planned: int
    checks: list[CheckReport] = attrs.Factory(list)

    @property
    def outcome(self) -> Outcome:
        """The worst verdict of all checks."""
        return worst(check.outcome for check in self.checks)


@final
@attrs.define
class VerificationReport:
    """A run of the command, with so many tokens in each decoding run."""

    tokens: int
    versions: Mapping[str, str] = attrs.Factory(versions)
    device: str = attrs.Factory(device)
    models: list[ModelReport] = attrs.Factory(list)
    interrupted: bool = False

    @property
    def outcome(self) -> Outcome:
        """The worst verdict of all models."""
        return worst(model.outcome for model in self.models)


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The worst of several verdicts; `OK` for none."""
    return max(outcomes, key=("OK", "NUMERICS", "BUG").index, default="OK")


def check_model(
    report: VerificationReport,
    name: str,
    draft: str | None,
    target: verify.VerificationTarget,
    shown: ProgressBars,
) -> None:
    """Run all checks of a model, and add it to a report."""
    task = shown.add(f"{name}: rounding")
    try:
        noise, about = target.rounding.noise, _about(draft, target)
    except Exception as error:
        problem = f"does not run on this machine: {summarize_error(error)}"
        raise CheckpointError(f"{name}: {problem}") from error
    todo = verify.cases(target)
    model = ModelReport(name, about, noise, planned=len(todo))
    report.models.append(model)
    for case in todo:
        shown.rename(task, f"{name}: {case.check}, {case.name}", len(todo))
        result = case.run()
        found = (result.outcome, result.compared, result.unit, result.summary())
        differences = list(result.differences)
        model.checks.append(CheckReport(case.check, case.name, *found, differences))
        shown.advance(task)
    shown.rename(task, f"{name}: {model.outcome}")


def _about(draft: str | None, target: verify.VerificationTarget) -> dict[str, str]:
    """Properties of a model, by label."""
    stock, adapter = target.oracle.stock, type(target.model).__name__
    family = "unknown" if stock is None else type(stock).__module__.rpartition(".")[2]
    logits = target.oracle.cold(target.ids(0, 1))
    caches = Counter(type(cache).__name__ for cache in target.oracle.caches())
    names = [drafter.name for drafter in target.drafters]
    return {
        "family": f"{family} ({adapter})",
        "logits": _dtype_name(logits.dtype),
        "weights": "unknown" if stock is None else _weights(stock),
        "caches": ", ".join(f"{count} {kind}" for kind, count in caches.items()),
        "drafts": ", ".join(f"draft ({draft})" if name == "draft" else name for name in names),
    }


def _weights(stock: StockModel) -> str:
    """Packings of quantised matrices, and dtypes of all other weights."""
    module = cast("Module", stock)
    parts = [vars(part) for _, part in module.named_modules() if "bits" in vars(part)]
    packings = Counter(
        f"{part.get('mode')} {part['bits']} bits, group {part.get('group_size')}" for part in parts
    )
    weights = cast("list[tuple[str, mx.array]]", tree_flatten(module.parameters()))
    found = [weight.dtype for _, weight in weights if weight.dtype != mx.uint32]
    dtypes = ", ".join(_dtype_name(dtype) for dtype, _ in Counter(found).most_common())
    quantised = [f"{count} matrices {kind}" for kind, count in packings.most_common()]
    return "; ".join([*quantised, dtypes])


def _dtype_name(dtype: mx.Dtype) -> str:
    return str(dtype).rpartition(".")[2]


def write(report: VerificationReport, place: str | None) -> None:
    """Print a report, and then write it to a file if there is one."""
    text = "\n".join(as_text(report))
    data = as_json({**attrs.asdict(report), "outcome": report.outcome}, indent=1)
    print(text, file=sys.stderr if place == STANDARD_STREAM else sys.stdout)
    if place == STANDARD_STREAM:
        print(data)
    elif place is not None:
        with writing("the report", place):
            Path(place).write_text(f"{data}\n", encoding="utf-8")


def as_text(report: VerificationReport) -> Iterator[str]:
    """The lines of the text report."""
    checks = [check for model in report.models for check in model.checks]
    compared = counted(sum(check.compared for check in checks), "comparisons")
    differences = counted(sum(len(check.differences) for check in checks), "differences")
    so_far = " so far, interrupted" if report.interrupted else ""
    yield f"speculate verify: {report.outcome}{so_far}"
    yield f"{differences} in {compared}, {counted(len(checks), 'checks')}"
    yield ""
    yield ", ".join(f"{name} {version}" for name, version in report.versions.items())
    yield report.device
    for model in report.models:
        yield ""
        yield from _model_lines(model)
    yield ""
    if report.outcome == "BUG":
        yield "This is a BUG: please report it, with everything above."
    elif report.outcome == "NUMERICS":
        yield "Nothing is wrong: all differences are within rounding on this machine."
    longer = f"--tokens {8 * report.tokens} checks longer sequences and takes longer."
    yield f"Each run decoded {report.tokens} tokens: {longer}"


def _model_lines(model: ModelReport) -> Iterator[str]:
    yield printable(model.name)
    for name, about in model.about.items():
        yield f"  {name:<9} {printable(about)}"
    noise = "equal" if model.noise == 0 else f"differ by up to {model.noise:.3g}"
    yield f"  rounding  mlx-lm's own logits, in blocks and token by token: {noise}"
    width = max((len(check.case) for check in model.checks), default=0)
    for check in model.checks:
        case = printable(f"{check.case:<{width}}")
        yield f"  {check.outcome:<9} {check.check:<10}  {case}  {check.figure}"
        # Rounding differences are everywhere if there are any, so their positions say nothing.
        wrong = [difference for difference in check.differences if difference.kind == "bug"]
        for difference in wrong[:MAX_SHOWN]:
            yield f"    {printable(difference.line())}"
        if len(wrong) > MAX_SHOWN:
            yield f"    and {len(wrong) - MAX_SHOWN} more"
    if missing := model.planned - len(model.checks):
        yield f"  not run: {missing} of {model.planned} checks"
