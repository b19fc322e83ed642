"""Which adapter drives which model: the table of the package, and what others name."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from zipfile import ZipFile

import mlx_lm
import pytest
from mlx_lm.models import gemma, llama

import speculate
from speculate import __version__
from speculate.errors import UnsupportedModelError
from speculate.models import registry
from speculate.models.adapter import DenseAdapter, StockAdapter
from speculate.models.registry import BUILT_IN, ENTRY_POINTS, factory_for, supported

PACKAGE = Path(speculate.__file__).parent
DENSE = "speculate.models.adapter:DenseAdapter"
FOREIGN, MORE = "foreign_package:OneAdapter", "foreign_package:OtherAdapter"

Name = Callable[[Mapping[str, Sequence[str]]], None]


class Foreign(StockAdapter):
    """An adapter of another distribution; never made here."""


@pytest.fixture
def name(monkeypatch: pytest.MonkeyPatch) -> Name:
    """Say what other distributions name, by architecture; by default there is no metadata."""
    module = ModuleType("foreign_package")
    one, other = type("OneAdapter", (Foreign,), {}), type("OtherAdapter", (Foreign,), {})
    vars(module).update(OneAdapter=one, OtherAdapter=other)
    monkeypatch.setitem(sys.modules, "foreign_package", module)

    def named(entries: Mapping[str, Sequence[str]]) -> None:
        made = [EntryPoint(n, v, ENTRY_POINTS) for n, values in entries.items() for v in values]

        def entry_points(*, group: str, name: str | None = None) -> list[EntryPoint]:
            assert group == ENTRY_POINTS
            return [entry for entry in made if name in (None, entry.name)]

        monkeypatch.setattr(registry, "entry_points", entry_points)

    named({})
    return named


def called(model: type[object]) -> str:
    return getattr(factory_for(model), "__name__", "")


@pytest.mark.parametrize("architecture", sorted(BUILT_IN))
def test_built_in_families_need_no_metadata(name: Name, architecture: str) -> None:
    model = importlib.import_module(f"mlx_lm.models.{architecture}").Model
    assert factory_for(model) is BUILT_IN[architecture]
    assert architecture in supported()


def test_an_unknown_family_is_not_asked_to_name_the_dense_adapter(name: Name) -> None:
    with pytest.raises(UnsupportedModelError, match="no adapter drives 'gemma'") as caught:
        factory_for(gemma.Model)
    said = str(caught.value)
    assert "gpt_oss, lfm2, llama" in said and "DenseAdapter" not in said
    assert 'gemma = "your_package:YourAdapter"' in said


def test_an_adapter_of_another_package_goes_before_the_tables(name: Name) -> None:
    name({"llama": [FOREIGN], "gemma": [DENSE]})
    assert called(llama.Model) == "OneAdapter"
    assert factory_for(gemma.Model) is DenseAdapter
    assert {"gemma", "llama", "qwen3_next"} <= set(supported())


def test_what_repeats_the_table_is_no_other_adapter(name: Name) -> None:
    """As the metadata of an older version of this package does, beside another package's."""
    name({"llama": [DENSE, FOREIGN, FOREIGN]})
    assert called(llama.Model) == "OneAdapter"


def test_two_packages_that_name_one_family_are_refused(name: Name) -> None:
    name({"llama": [FOREIGN, MORE]})
    with pytest.raises(UnsupportedModelError, match="several packages") as caught:
        factory_for(llama.Model)
    assert FOREIGN in str(caught.value) and MORE in str(caught.value)


def test_an_entry_point_that_cannot_be_loaded_is_named(name: Name) -> None:
    name({"gemma": ["no_such_package:Adapter"]})
    with pytest.raises(UnsupportedModelError, match=r"gemma = \"no_such_package:Adapter\".*Module"):
        factory_for(gemma.Model)


WITHOUT_METADATA = """
import importlib.metadata
import mlx.core as mx
mx.set_default_device(mx.cpu)
import speculate as sp
from speculate.cli.main import main
from speculate.cli._console import versions
assert not list(importlib.metadata.entry_points(group="speculate.models"))
model, tokenizer = sp.load_demo("draft")
print(sp.generate(model, tokenizer, "def ", max_tokens=4, strategy=sp.Adaptive()) != "")
print(versions()["mlx-speculate"], sp.__file__)
main(["--version"])
"""


def test_an_archive_without_metadata_loads_and_decodes(tmp_path: Path) -> None:
    """As from a zipapp, or a source tree on `PYTHONPATH`: the package and no metadata of it."""
    archive, others = tmp_path / "app.zip", tmp_path / "others"
    with ZipFile(archive, "w") as written:
        for path in PACKAGE.rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                written.write(path, path.relative_to(PACKAGE.parent))
    others.mkdir()
    for path in Path(mlx_lm.__file__).parents[1].iterdir():
        if "speculate" not in path.name and path.suffix != ".pth":
            (others / path.name).symlink_to(path)
    ran = subprocess.run(
        [sys.executable, "-S", "-c", WITHOUT_METADATA],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (archive, others)))},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    where = archive / "speculate" / "__init__.py"
    assert ran.stdout.splitlines() == ["True", f"{__version__} {where}", f"speculate {__version__}"]
