"""Every python block of the documentation runs, prints what it says it prints, and is tidy."""

import re
from pathlib import Path

import attrs
import pytest
from pytest_examples import CodeExample, EvalExample, find_examples

from speculate.protocols import Round

ROOT = Path(__file__).parents[2]
PAGES = [path for path in (ROOT / "README.md", ROOT / "docs") if path.exists()]
EXAMPLES = [e for e in find_examples(*PAGES) if e.prefix in ("python", "py")]


def label(example: CodeExample) -> str:
    return f"{example.path.relative_to(ROOT)}:{example.start_line}"


@pytest.mark.parametrize("example", EXAMPLES, ids=label)
def test_block(
    example: CodeExample,
    eval_example: EvalExample,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A block stands alone: pasted into an empty file, it works."""
    monkeypatch.chdir(tmp_path)
    eval_example.set_config(
        target_version="py311",  # type: ignore[arg-type]  # its annotation stops at 3.10
        line_length=100,
        ruff_select=["E", "F", "I", "B", "UP", "SIM", "RUF"],
    )
    if eval_example.update_examples:
        eval_example.run_print_update(example)
    else:
        eval_example.run_print_check(example)
        eval_example.lint_ruff(example)


def test_all_fields_of_a_round_are_described() -> None:
    page = (ROOT / "docs" / "telemetry.md").read_text(encoding="utf-8")
    table = page.partition("{#fields}")[2].partition("\n#")[0]
    described = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert sorted(described) == sorted(field.name for field in attrs.fields(Round))
