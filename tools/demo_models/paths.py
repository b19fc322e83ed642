"""Where the recipe reads and writes."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "speculate" / "data"
WORK = ROOT / ".cache" / "demo"
"""Checkpoints, token files and logs: nothing in here is shipped."""

HYBRID = DATA / "hybrid"
DRAFT = DATA / "draft"
WINDOWED = DATA / "windowed"
PROMPTS = DATA / "prompts"


def work(name: str) -> Path:
    """Returns the path of a scratch file, whose folder exists afterwards."""
    WORK.mkdir(parents=True, exist_ok=True)
    return WORK / name
