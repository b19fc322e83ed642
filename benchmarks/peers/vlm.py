"""mlx-vlm as a contestant."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import IO, Final, final

from platformdirs import user_cache_path

from benchmarks.texts import Decoded

VERSION: Final = "0.7.10"
PLACE: Final = user_cache_path("speculate") / "peers" / f"mlx-vlm-{VERSION}"
WORKER: Final = Path(__file__).with_name("vlm_worker.py")


def environment() -> Path:
    """The Python of an environment with mlx-vlm, made when first asked for.

    Its MLX is of the version that runs here.
    """
    python, ready = PLACE / "bin" / "python", PLACE / ".ready"
    if not ready.exists():
        if subprocess.run([sys.executable, "-m", "venv", PLACE], check=False).returncode:
            # A Debian without python3-venv cannot put pip into a new environment.
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", PLACE], check=True)
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q"]
        wanted = [f"mlx-vlm=={VERSION}", f"mlx[cpu]=={version('mlx')}"]
        subprocess.run([*pip, *wanted], check=True)
        ready.touch()
    return python


@final
class MLXVLM:
    """A process that decodes with mlx-vlm."""

    def __init__(self, to: IO[str], back: IO[str]) -> None:
        self._to = to
        self._back = back

    def decode(
        self, prompt: Sequence[int], tokens: int, block: int | None, *, whole: bool = False
    ) -> Decoded:
        """Decode a text.

        Args:
            prompt: Ids.
            tokens: Of the text.
            block: Rows of a round; `None` to decode without drafts.
            whole: Take the prompt in at once: only so does its head see all of it.

        Raises:
            RuntimeError: The process ended. Its reason is on the standard error.
        """
        asked = {"prompt": list(prompt), "tokens": tokens, "block": block, "whole": whole}
        self._to.write(json.dumps(asked) + "\n")
        self._to.flush()
        line = self._back.readline()
        if not line:
            raise RuntimeError("mlx-vlm's process ended")
        return Decoded(**json.loads(line))


@contextmanager
def mlx_vlm(model: Path, drafter: Path) -> Iterator[MLXVLM]:
    """mlx-vlm with a model and its head, until the block is left."""
    command = [str(environment()), str(WORKER), str(model), str(drafter)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("mlx-vlm's process has no pipes")
        yield MLXVLM(process.stdin, process.stdout)
        process.stdin.close()
