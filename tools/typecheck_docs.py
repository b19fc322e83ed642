"""Type-check every python block of README.md and docs/, and examples/, as a reader would.

Runs `mypy` in an empty folder, so that `speculate` is checked as an installed package: with the
settings that docs/start.md recommends, and without this repository's own.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pytest_examples import CodeExample, find_examples

ROOT = Path(__file__).resolve().parents[1]
PAGES = [path for path in (ROOT / "README.md", ROOT / "docs") if path.exists()]
MYPY = (
    *("mypy", "--no-error-summary", "--explicit-package-bases"),
    f"--cache-dir={ROOT / '.mypy_cache' / 'docs'}",
)


def write(example: CodeExample, number: int, folder: Path) -> Path:
    """Write one block with its lines where the page has them, so that errors name the page's."""
    path = folder / f"block_{number}.py"
    path.write_text("\n" * example.start_line + example.source, encoding="utf-8")
    return path


def settings() -> str:
    """Return the mypy settings that docs/start.md recommends."""
    page = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    (found,) = re.findall(r"^```toml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    return str(found)


def main() -> int:
    examples = [e for e in find_examples(*PAGES) if e.prefix in ("python", "py")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pyproject.toml").write_text(settings(), encoding="utf-8")
        blocks = {write(e, i, folder).name: e.path for i, e in enumerate(examples)}
        programs = [
            Path(shutil.copy(path, folder)).name for path in (ROOT / "examples").glob("*.py")
        ]
        command = [sys.executable, "-m", *MYPY, *blocks, *programs]
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    report = run.stdout + run.stderr
    for block, page in blocks.items():
        report = report.replace(f"{block}:", f"{page.relative_to(ROOT)}:")
    verdict = "these types are wrong" if run.returncode else "all types are right"
    print(f"{report}{len(blocks)} python blocks in the docs, {len(programs)} examples: {verdict}")
    return run.returncode


if __name__ == "__main__":
    sys.exit(main())
