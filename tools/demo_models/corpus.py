"""The text that the models learn: CPython's own standard library and its topic pages.

Both ship with every CPython, so the recipe downloads nothing.
"""

from __future__ import annotations

import sysconfig
import zlib
from collections.abc import Iterator
from pathlib import Path
from pydoc_data import topics

HELD_OUT = frozenset({
    "bisect.py", "calendar.py", "cmd.py", "colorsys.py", "csv.py", "fractions.py", "graphlib.py",
    "heapq.py", "netrc.py", "queue.py", "sched.py", "shlex.py", "textwrap.py", "json", "wsgiref",
})  # fmt: skip
"""Modules and packages that no model sees; prompts and measurements come from them."""

_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
# Character tables and generated grammar tables: long runs of numbers that teach nothing.
_TABLES = ("encodings/", "pydoc_data/", "_sysconfigdata", "lib2to3/pgen2/tokenize", "config-")


def stdlib() -> Path:
    """Returns the folder of the standard library that runs this."""
    return Path(sysconfig.get_paths()["stdlib"])


def source_files() -> Iterator[tuple[str, Path]]:
    """Yields (name relative to the library, path) of each module that is worth reading."""
    root = stdlib()
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if not _SKIPPED.intersection(path.parts) and not name.startswith(_TABLES):
            yield name, path


def is_held_out(name: str) -> bool:
    """Tells whether a module is kept for evaluation."""
    return name.split("/")[0] in HELD_OUT


def topic_is_held_out(topic: str) -> bool:
    """Tells whether a topic page is kept for evaluation: one in ten, by its name's checksum."""
    return zlib.crc32(topic.encode()) % 10 == 0


def code(*, held_out: bool) -> list[str]:
    """Returns the modules' texts on one side of the split."""
    return [
        path.read_text(encoding="utf-8", errors="replace")
        for name, path in source_files()
        if is_held_out(name) is held_out
    ]


def prose(*, held_out: bool) -> list[str]:
    """Returns the language reference's topic pages on one side of the split."""
    pages = topics.topics.items()
    return [text for topic, text in sorted(pages) if topic_is_held_out(topic) is held_out]
