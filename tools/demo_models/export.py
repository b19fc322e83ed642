"""Writes the model folders, quantised as mlx-lm does it: 8 bit, affine, groups of 64."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.utils import quantize_model, save_config, save_model

from tools.demo_models import models, tokenizer
from tools.demo_models.paths import DRAFT, HYBRID, WINDOWED, work

BITS, GROUP = 8, 64


def _quantize(module: nn.Module, config: models.Config) -> dict[str, Any]:
    with contextlib.redirect_stdout(io.StringIO()):
        _, quantized = quantize_model(module, config, GROUP, BITS)
    settings: dict[str, Any] = quantized
    return settings


def round_weights(module: nn.Module) -> None:
    """Replaces weights by what is left of them after quantising, still as plain float32.

    What is distilled from the target must follow the target that ships, and float products are
    the faster ones on a CPU.
    """
    for _, part in module.named_modules():
        if hasattr(part, "to_quantized") and part.weight.shape[-1] % GROUP == 0:
            packed = mx.quantize(part.weight, GROUP, BITS)
            part.weight = mx.dequantize(*packed, group_size=GROUP, bits=BITS)
    mx.eval(module.parameters())


def write(module: nn.Module, config: models.Config, folder: Path) -> None:
    """Quantises a module and writes a folder that stock ``mlx_lm.load`` reads.

    Args:
        module: The trained model; it is quantised in place.
        config: Its configuration.
        folder: Where it goes; files of the same names are replaced one by one.
    """
    staged = work(f"staged_{folder.name}")
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    settings = _quantize(module, config)
    save_model(staged, module)
    (staged / "model.safetensors.index.json").unlink(missing_ok=True)
    save_config(settings, staged / "config.json")
    for name in config.get("configuration_files", ()):
        text = json.dumps(models.TOKENIZER_VIEW, indent=4) + "\n"
        (staged / name).write_text(text, encoding="utf-8")
    tokenizer.save(staged)
    folder.mkdir(parents=True, exist_ok=True)
    for path in staged.iterdir():
        path.replace(folder / path.name)


def load_hybrid(name: str = "hybrid.safetensors") -> models.Hybrid:
    """Returns the target as a checkpoint left it; a newer head, if there is one, on top."""
    model = models.hybrid()
    model.load_weights(str(work(name)))
    head = work("head.safetensors")
    if head.exists() and head.stat().st_mtime > work(name).stat().st_mtime:
        model.head.load_weights(str(head))
    mx.eval(model.parameters())  # type: ignore[no-untyped-call]
    return model


def run() -> None:
    """Writes all three folders from the checkpoints that there are."""
    write(load_hybrid(), models.HYBRID, HYBRID)
    draft, windowed = models.draft(), models.windowed()
    draft.load_weights(str(work("draft.safetensors")))
    windowed.load_weights(str(work("windowed.safetensors")))
    write(draft, models.DRAFT, DRAFT)
    write(windowed, models.WINDOWED, WINDOWED)


if __name__ == "__main__":
    mx.set_default_device(mx.cpu)
    run()
