"""Measured costs, kept in the user's cache folder from one process to the next."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Final, cast, final

import platformdirs

from speculate.protocols import Costs

SMALLEST: Final = 256
"""Shorter contexts cost what this one does."""

logger = logging.getLogger(__name__)


def bucket(context: int) -> int:
    """The context length that stands for `context`: a power of two, at least 256."""
    return max(SMALLEST, 1 << (context - 1).bit_length()) if context > 0 else SMALLEST


@final
class CostStore:
    """One file for each model, its proposers and machine. What cannot be read is measured again.

    Args:
        folder: Where; by default `speculate` in the user's cache folder.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def load(self, key: str, context: int) -> Costs | None:
        """What was measured under `key` at this context length, or `None`."""
        entry = self._read(key).get(str(bucket(context)))
        try:
            return None if entry is None else _costs(entry)
        except (AttributeError, TypeError, ValueError, KeyError):
            logger.warning("ignored unreadable costs in %s", self._path(key))
            return None

    def save(self, key: str, costs: Costs) -> None:
        """Keep what was measured. A folder that cannot be written to is left alone."""
        entries = self._read(key)
        entries[str(bucket(costs.context))] = {
            "context": costs.context,
            "forward": {str(rows): seconds for rows, seconds in costs.forward.items()},
            "draft": dict(costs.draft),
        }
        path = self._path(key)
        beside = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(json.dumps({"key": key, "contexts": entries}, indent=1))
            beside.replace(path)
        except OSError as error:
            logger.info("measured costs are not kept: %s", error)

    def _read(self, key: str) -> dict[str, object]:
        try:
            found = json.loads(self._path(key).read_text())
            return cast("dict[str, object]", dict(found["contexts"]))
        except (OSError, ValueError, TypeError, KeyError):
            return {}

    def _path(self, key: str) -> Path:
        folder = self._folder or platformdirs.user_cache_path("speculate", appauthor=False)
        return folder / "costs" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


def _costs(entry: object) -> Costs:
    """Costs from a file, checked: times are positive numbers, one row is among them."""
    fields = cast("dict[str, dict[str, float]]", entry)
    forward = {int(rows): float(seconds) for rows, seconds in fields["forward"].items()}
    draft = {name: float(seconds) for name, seconds in fields["draft"].items()}
    if 1 not in forward or len(forward) < 2:
        raise ValueError("times of one row and of more are needed")
    if not all(0 < seconds < 1e4 for seconds in [*forward.values(), *draft.values()]):
        raise ValueError("times are positive, in seconds")
    return Costs(int(cast(int, fields["context"])), forward, draft)
