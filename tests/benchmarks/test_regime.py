"""The regime is entered once, and missing parts are named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import regime

SHOW = """
import json
from benchmarks import regime
regime.enter()
print(json.dumps(regime.environment()))
"""


def test_without_openblas_the_message_names_the_package(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="apt-get install libopenblas0-pthread"):
        regime.find_openblas(tmp_path)


def test_the_library_is_found_for_any_architecture(tmp_path: Path) -> None:
    library = tmp_path / "aarch64-linux-gnu" / "openblas-pthread" / "libopenblas.so.0"
    library.parent.mkdir(parents=True)
    library.touch()
    assert regime.find_openblas(tmp_path) == library


def test_entering_starts_the_program_again_with_openblas_preloaded() -> None:
    try:
        regime.find_openblas()
    except SystemExit:
        pytest.skip("libopenblas0-pthread is not installed")
    command = [sys.executable, "-c", SHOW]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    record = json.loads(found.stdout)
    assert record["blas"].startswith("libopenblas")
    assert record["threads"] == "2"


def test_a_library_that_the_loader_ignored_ends_the_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = tmp_path / "libopenblas.so.0"
    monkeypatch.setenv("LD_PRELOAD", str(library))
    with pytest.raises(SystemExit, match="was not loaded"):
        regime.start_again(library)


def test_the_environment_is_recorded() -> None:
    record = regime.environment()
    assert record["mlx-lm"] and record["cores"] and record["date"]
