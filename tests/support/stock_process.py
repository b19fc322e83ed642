"""Run as a program: a process that has only mlx-lm, and goes on with saved prompt caches.

Arguments: a folder, and the families whose caches lie in it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import load_prompt_cache, save_prompt_cache

from tests.support import tiny

NEXT = (5, 3, 60, 2, 41, 7)


def main(folder: Path, families: list[str]) -> None:
    for family in families:
        model: Any = {**tiny.FAMILIES, **tiny.MORE, **tiny.FOLDED}[family]()
        caches = load_prompt_cache(str(folder / f"{family}.safetensors"))
        rows = [model(mx.array([[token]]), cache=caches)[0, -1] for token in NEXT]
        mx.save_safetensors(str(folder / f"{family}.logits.safetensors"), {"rows": mx.stack(rows)})
        save_prompt_cache(str(folder / f"{family}.later.safetensors"), caches)
    assert "speculate" not in sys.modules


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
