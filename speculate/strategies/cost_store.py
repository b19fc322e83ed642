"""Measured costs, stored in the user's cache folder across processes."""

from __future__ import annotations

import json
import logging
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final, final

import attrs

from speculate.errors import OptionError
from speculate.protocols import Costs

MIN_CONTEXT: Final = 256
"""Context length in tokens. All shorter contexts share its costs."""

MAX_PLAUSIBLE_SECONDS: Final = 1e4
"""Upper bound of a plausible measurement, in seconds."""

_logger = logging.getLogger(__name__)


def context_bucket(context: int) -> int:
    """`context` rounded up to a power of two, at least 256 tokens."""
    return max(MIN_CONTEXT, 1 << (context - 1).bit_length()) if context > 0 else MIN_CONTEXT


@final
class CostStore:
    """One file per key and context length; a key is a model, its proposers and the machine.

    Costs that cannot be read are measured again; costs that cannot be written are not stored.

    Args:
        folder: Folder of the files; by default `speculate` in the user's cache folder.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def load(self, key: str, context: int) -> Costs | None:
        """The costs stored under `key` at this context length, or `None`."""
        path = self._path(key, context)
        try:
            entry = json.loads(path.read_text(encoding="utf-8"))
            forward = {int(rows): float(seconds) for rows, seconds in entry["forward"].items()}
            draft = {name: float(seconds) for name, seconds in entry["draft"].items()}
            return check_costs(Costs(int(entry["context"]), forward, draft))
        except FileNotFoundError:
            return None
        except (
            OSError,
            ArithmeticError,
            AttributeError,
            LookupError,
            RecursionError,
            TypeError,
            ValueError,
        ):
            _logger.warning("ignored the costs in %s, which cannot be read", path)
            return None

    def save(self, key: str, costs: Costs) -> None:
        """Store measured costs under `key`."""
        path = self._path(key, costs.context)
        own = f".{os.getpid()}.{threading.get_ident()}.tmp"
        beside = path.with_suffix(own)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(json.dumps({"key": key, **attrs.asdict(costs)}), encoding="utf-8")
            beside.replace(path)
        except OSError as error:
            _logger.info("measured costs are not stored: %s", error)
            with suppress(OSError):
                beside.unlink()

    def _path(self, key: str, context: int) -> Path:
        # Imported late, because only a strategy that stores costs needs them.
        import hashlib

        import platformdirs

        folder = self._folder or platformdirs.user_cache_path("speculate", appauthor=False)
        name = hashlib.sha256(key.encode()).hexdigest()[:24]
        return folder / "costs" / f"{name}-{context_bucket(context)}.json"


def check_costs(costs: Costs) -> Costs:
    """Return the costs if they are valid.

    Raises:
        OptionError: A time is missing or implausible.
    """
    rows, seconds = list(costs.forward), [*costs.forward.values(), *costs.draft.values()]
    if 1 not in rows or len(rows) < 2 or min(rows) < 1:
        raise OptionError(f"costs need the times of 1 row and of more rows, got those of {rows}")
    plausible = all(0 <= time < MAX_PLAUSIBLE_SECONDS for time in seconds)
    if not plausible or 0 in costs.forward.values():
        raise OptionError(f"costs must be times in seconds, above 0 for a forward; got {seconds}")
    return costs
