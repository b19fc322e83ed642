"""Rounds as JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import BinaryIO, Final, cast, final

import attrs

from speculate.cli.printing import finite
from speculate.cli.writing import unwritable
from speculate.decoding.stats import Stats
from speculate.protocols import Round

STANDARD_ERROR: Final = "-"


@final
class EventLog:
    """Writes each round as a line, at once, so that a run that is killed leaves whole lines.

    Args:
        file: Where to.
        name: What errors call it.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self._name = name

    def __call__(self, round: Round, stats: Stats, /) -> None:
        line = json.dumps(finite(event(round, stats)), allow_nan=False).encode() + b"\n"
        try:
            while line:
                line = line[self._file.write(line) :]
            self._file.flush()
        except OSError as error:
            raise unwritable("events", self._name, error) from error


@contextmanager
def event_log(name: str) -> Iterator[EventLog]:
    """A log at the end of a file, or on standard error.

    Args:
        name: A path; `-` for standard error.

    Raises:
        OptionError: It cannot be written to.
    """
    if name == STANDARD_ERROR:
        yield EventLog(sys.stderr.buffer, "standard error")
        return
    with ExitStack() as stack:
        try:
            # What is there is kept. Without a buffer a line is written whole, or not at all.
            file = stack.enter_context(open(name, "ab", buffering=0))
        except (OSError, ValueError) as error:
            raise unwritable("events", name, error) from error
        yield EventLog(cast(BinaryIO, file), name)


def event(round: Round, stats: Stats) -> dict[str, object]:
    """A round and what all rounds up to it come to.

    Args:
        round: The round.
        stats: Counters, this round included.
    """
    totals = {
        "seed": stats.seed,
        "rounds": stats.rounds,
        "tokens": stats.round_tokens,
        "seconds": stats.seconds,
        "drafts": stats.drafts,
        "draft_tokens": stats.draft_tokens,
        "accepted_tokens": stats.accepted_tokens,
        "mean_acceptance_length": stats.mean_acceptance_length,
        "acceptance_rate": stats.acceptance_rate,
        "predicted_speedup": stats.predicted_speedup,
        "actual_speedup": stats.actual_speedup,
    }
    return {**attrs.asdict(round), "totals": totals}
