"""The examples are as short as the documentation says."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
LIMITS = {
    "chunked_cache": 60,
    "falcon_h1": 60,
    "suffix_automaton": 60,
    "own_loop": 40,
    "top_n_sigma": 60,
}


def lines_of_code(path: Path) -> int:
    """Lines without blank ones, comments and docstrings."""
    source = path.read_text(encoding="utf-8")
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    numbered = enumerate(source.splitlines(), start=1)
    return sum(
        bool(line.strip()) and not line.lstrip().startswith("#") and number not in docstrings
        for number, line in numbered
    )


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_short(path: Path) -> None:
    assert lines_of_code(path) < LIMITS[path.stem]
