"""The page on extensions lists what each kind needs, and the examples need nothing else."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from speculate import protocols

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")

MOST: Final = {
    "a-strategy": 4,
    "a-proposer": 6,
    "a-sampler": 4,
    "an-adapter": 5,
    "a-backend": 9,
    "optional": 8,
}
"""Names at most, by section."""

EXAMPLES: Final = [
    ("a-strategy", "docs/strategies.md", "class Resting"),
    ("a-strategy", "docs/proposers.md", "class WhenFound"),
    ("a-strategy", "docs/proving.md", "class Deeper"),
    ("a-proposer", "docs/proposers.md", "class NGram"),
    ("a-proposer", "examples/suffix_automaton.py", ""),
    ("a-sampler", "docs/sampling.md", "class Hopeful"),
    ("a-sampler", "examples/top_n_sigma.py", ""),
    ("an-adapter", "docs/adapters.md", "def running_sum"),
    ("an-adapter", "examples/falcon_h1.py", ""),
    ("a-backend", "examples/chunked_cache.py", ""),
]
"""Section, file, and what tells the block on a page."""

MORE: Final = {
    "a-sampler": {"acceptance_rule", "Mode"},
    # It shows what a layer does with a cache, by making one.
    "an-adapter": {"RewindableArraysCache"},
}
"""Names that the text of a section adds to its table."""


def section(anchor: str) -> str:
    return PAGE.partition("{#" + anchor + "}")[2].partition("\n## ")[0]


def links(anchor: str) -> dict[str, str]:
    """Names and targets in the first column of a section's tables."""
    return dict(re.findall(r"^\| \[`([\w.]+)`\]\[([\w.]+)\]", section(anchor), re.MULTILINE))


def source_of(path: str, mark: str) -> str:
    text = (ROOT / path).read_text(encoding="utf-8")
    if not mark:
        return text
    (found,) = (
        block
        for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        if mark in block
    )
    return str(found)


def imported(source: str) -> Iterator[tuple[str, str]]:
    """Module and name of what is imported from the package's modules, without the kit."""
    for node in ast.walk(ast.parse(source)):
        module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        if module.startswith("speculate") and module.partition(".")[2] != "testing":
            assert isinstance(node, ast.ImportFrom)
            for alias in node.names:
                yield module, alias.name


@pytest.mark.parametrize("anchor", MOST)
def test_an_extension_needs_few_names(anchor: str) -> None:
    assert 0 < len(links(anchor)) <= MOST[anchor]


@pytest.mark.parametrize("anchor", MOST)
def test_every_name_is_there(anchor: str) -> None:
    for name, target in links(anchor).items():
        if name == target:
            importlib.import_module(name)
        else:
            module, _, attribute = target.rpartition(".")
            assert attribute == name
            assert hasattr(importlib.import_module(module), name)


def test_all_optional_protocols_are_listed() -> None:
    assert links("optional").keys() == {n for n in vars(protocols) if n.startswith("Supports")}


@pytest.mark.parametrize(("anchor", "path", "mark"), EXAMPLES)
def test_an_example_needs_nothing_else(anchor: str, path: str, mark: str) -> None:
    listed = links(anchor) | links("optional")
    found = list(imported(source_of(path, mark)))
    assert found
    for module, name in found:
        known = name in listed or name in MORE.get(anchor, ()) or module in listed
        assert known, f"{path} imports {module}.{name}"
