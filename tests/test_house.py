"""Rules of the house that no other tool checks."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "speculate"
MAX_FILE_LINES = 450
MAX_FUNCTION_LINES = 60
TORN_BELOW_LINES = 100

SINGLE_IMPORTER = {
    "speculate.cli.bench": "a command",
    "speculate.cli.demo": "a command",
    "speculate.cli.generate": "a command",
    "speculate.cli.verify": "a command",
    "speculate.models.gpt_oss": "a model family",
    "speculate.models.qwen3_5": "a model family",
    "speculate.models.qwen3_next": "a model family",
    "speculate.protocols.sampler": "a protocol",
}
"""Modules below `TORN_BELOW_LINES` that one other module imports, with the reason."""


def parse(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("protocols/*.py")), ids=lambda p: p.name)
def test_protocols_do_not_import_mlx_nn(path: Path) -> None:
    imports = [ast.unparse(n) for n in parse(path) if isinstance(n, ast.Import | ast.ImportFrom)]
    assert not [line for line in imports if "mlx.nn" in line or line.startswith("from mlx import")]


def test_importing_speculate_does_not_import_mlx_lm() -> None:
    code = "import sys, speculate; sys.exit('mlx_lm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_files_and_functions_are_short() -> None:
    long = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE.parent)
        if (lines := line_count(path)) > MAX_FILE_LINES:
            long.append(f"{name}: {lines} lines")
        for node in parse(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    long.append(f"{name}:{node.lineno} {node.name}: {lines} lines")
    assert not long, "\n".join(long)


def importers() -> dict[str, set[str]]:
    """Map each module of the package to the modules that import it."""
    paths = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path
        for path in sorted(PACKAGE.rglob("*.py"))
    }
    found: dict[str, set[str]] = {name: set() for name in paths}
    for name, path in paths.items():
        for node in parse(path):
            targets: list[str] = []
            if isinstance(node, ast.ImportFrom) and node.module:
                targets = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            for target in targets:
                if target in found and target != name:
                    found[target].add(name)
    return found


def test_a_file_is_a_thought_and_not_a_torn_page() -> None:
    """A short module with a single importer belongs into it, unless there is a reason."""
    torn = {
        name
        for name, users in importers().items()
        if len(users) == 1
        and not name.endswith("__init__")
        and line_count(PACKAGE.parent / (name.replace(".", "/") + ".py")) < TORN_BELOW_LINES
    }
    assert torn == SINGLE_IMPORTER.keys()


def test_no_class_name_is_used_twice() -> None:
    found: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in parse(path):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(path.relative_to(PACKAGE).as_posix())
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def line_count(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())
