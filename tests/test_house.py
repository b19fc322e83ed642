"""Rules of the house that no other tool checks."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "speculate"
MAX_FILE_LINES = 450
MAX_FUNCTION_LINES = 60


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
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > MAX_FILE_LINES:
            long.append(f"{name}: {lines} lines")
        for node in parse(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    long.append(f"{name}:{node.lineno} {node.name}: {lines} lines")
    assert not long, "\n".join(long)
