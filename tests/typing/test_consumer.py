"""A user's project, installed against the wheel, with type checkers that have no settings."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Final

import pytest

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parent.parent
WRONG: Final = "# wrong"

pytestmark = pytest.mark.types


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the user's files, whose environment has the wheel and what it needs."""
    folder = tmp_path_factory.mktemp("project")
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    wheels = folder / "wheels"
    # Built from the files as they are, with the build tools of this environment.
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(wheels), str(ROOT)]
    subprocess.run(build, check=True)
    venv.create(folder / "env")
    packages = next((folder / "env" / "lib").glob("python3*")) / "site-packages"
    (wheel,) = wheels.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "-t", str(packages), str(wheel)], check=True)
    # The editable install of this environment is reached through a .pth file, which a second
    # level of .pth does not follow: what is found is the wheel.
    (packages / "rest.pth").write_text(sysconfig.get_path("purelib"))
    for path in (HERE / "consumer").glob("*.py"):
        shutil.copy(path, folder)
    return folder


def run(project: Path, *command: str) -> str:
    """Output of a command in the user's folder and environment."""
    tools = Path(sys.executable).parent
    path = f"{project / 'env' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [str(tools / command[0]), *command[1:]],
        cwd=project,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def mypy(project: Path, name: str) -> str:
    python = str(project / "env" / "bin" / "python")
    settings = ["--strict", "--no-incremental", "--python-executable", python, "--config-file", ""]
    return run(project, "mypy", *settings, name)


def marked(name: str) -> set[int]:
    """Lines that say that they are wrong."""
    lines = (HERE / "consumer" / name).read_text(encoding="utf-8").splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith(WRONG)}


def reported(output: str, name: str) -> set[int]:
    """Lines with an error in what a type checker printed."""
    return {int(line) for line in re.findall(rf"{name}:(\d+)(?::\d+)?(?: -|:) error", output)}


def test_mypy_accepts_what_is_right(project: Path) -> None:
    assert "Success" in mypy(project, "good.py")


def test_pyright_accepts_what_is_right(project: Path) -> None:
    assert "0 errors" in (output := run(project, "pyright", "good.py")), output


def test_mypy_finds_every_error_and_no_other(project: Path) -> None:
    assert reported(output := mypy(project, "bad.py"), "bad.py") == marked("bad.py"), output


def test_pyright_finds_every_error_and_no_other(project: Path) -> None:
    output = run(project, "pyright", "bad.py")
    assert reported(output, "bad.py") == marked("bad.py"), output


def test_the_public_types_are_complete(project: Path) -> None:
    output = run(project, "pyright", "--verifytypes", "speculate", "--ignoreexternal")
    assert "Type completeness score: 100%" in output, output[-4000:]
