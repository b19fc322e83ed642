"""Writing a head as a checkpoint of its own, in the published form (`qwen3_5_mtp`)."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from tempfile import mkdtemp
from typing import cast

import attrs
import mlx.core as mx
from mlx_lm.models import qwen3_5, qwen3_next

from speculate.checkpoints.folder import section
from speculate.checkpoints.head import DEDICATED, HeadFiles, HeadTensors
from speculate.checkpoints.names import DENSE
from speculate.checkpoints.quantization import Quantization
from speculate.errors import CheckpointError

_Args = qwen3_5.TextModelArgs | qwen3_next.ModelArgs


def write_head_checkpoint(folder: Path, head: HeadTensors, config: Mapping[str, object]) -> None:
    """Write a head's weights and its `head_config` into an empty folder, the config last."""
    save(folder / "model.safetensors", head.weights)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def save(path: Path, weights: Mapping[str, mx.array]) -> None:
    """Write a safetensors file, with the metadata that marks mlx's conventions."""
    mx.save_safetensors(str(path), dict(weights), metadata={"format": "mlx"})


def copy_tokenizer(source: Path, folder: Path) -> None:
    """Copy the tokenizer files that exist, as published head checkpoints have them."""
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.json"):
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def head_config(files: HeadFiles, head: HeadTensors) -> dict[str, object]:
    """Return the config of a head checkpoint. Refuses one that describes no such model."""
    text = _text_config(files, head)
    return {
        "model_type": "qwen3_5_mtp",
        "block_size": len(head.experts) + 2,
        "tie_word_embeddings": text["tie_word_embeddings"],
        "text_config": text,
        **_quantization(head.quantization),
    }


def packing_entry(packing: Quantization) -> dict[str, object]:
    """Return a quantisation in the form of a config."""
    entry = {"group_size": packing.group_size, "bits": packing.bits, "mode": packing.mode}
    return {**entry, "global_scale": True} if packing.global_scale else entry


def _text_config(files: HeadFiles, head: HeadTensors) -> dict[str, object]:
    source = section(files.config, "text_config") or files.config
    not_text = {"architectures", "auto_map", "text_config", "vision_config", "transformers_version"}
    not_text |= {"quantization", "quantization_config", "mlx_lm_version"}
    # What reads a config may also write into it.
    text = deepcopy({key: value for key, value in source.items() if key not in not_text})
    args = _args(files.folder, deepcopy(text))
    defaults = {key: value for key, value in asdict(args).items() if key != "rope_scaling"}
    text = {**defaults, **text, "rope_parameters": _rope(args), DEDICATED: False}
    text["mtp_num_hidden_layers"] = len(head.experts)
    text["tie_word_embeddings"] = args.tie_word_embeddings
    if args.num_experts and all(layout == DENSE for layout in head.experts):
        # The trunk has experts, and its head has none.
        rows = head.weights["layers.0.mlp.gate_proj.weight"].shape[0]
        text |= {"model_type": "qwen3_5_text", "num_experts": 0, "intermediate_size": rows}
    return text


def _args(folder: Path, text: dict[str, object]) -> _Args:
    """Return a text model's arguments as mlx-lm reads them, with defaults filled in."""
    if "hidden_size" not in text:
        raise CheckpointError(
            f"{folder}: there is no config.json that describes the head's model. Put its trunk's "
            "there"
        )
    try:
        if text.get("model_type") == "qwen3_next":
            return cast(_Args, qwen3_next.ModelArgs.from_dict(text))
        return cast(_Args, qwen3_5.TextModelArgs.from_dict(text))
    except (TypeError, ValueError, AttributeError) as error:
        problem = f"{folder}: config.json: describes no model with a head: {error}"
        raise CheckpointError(problem) from error


def _rope(args: _Args) -> dict[str, object]:
    rotated = int((args.head_dim or 0) * args.partial_rotary_factor)
    return {
        "type": "default",
        "rope_theta": args.rope_theta,
        "partial_rotary_factor": args.partial_rotary_factor,
        # Text has one position for all three axes, so the split does not matter to it.
        "mrope_section": [rotated // 2, 0, 0],
        **(args.rope_scaling or {}),
    }


def _quantization(packings: Mapping[str, Quantization]) -> dict[str, object]:
    if not packings:
        return {}
    in_order = [packings[module] for module in sorted(packings)]
    shared = Counter(attrs.evolve(packing, global_scale=False) for packing in in_order)
    common = shared.most_common(1)[0][0]
    found = packing_entry(common)
    found |= {m: packing_entry(packing) for m, packing in packings.items() if packing != common}
    return {"quantization": found, "quantization_config": found}


@contextmanager
def new_folder(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a folder to fill, which is renamed to `target` if the body does not raise.

    Until then it is in a hidden folder next to `target`, which stays unchanged. A process that is
    killed leaves that hidden folder, and nothing else. With `replace`, an existing model folder
    gives way; without it, one is refused.
    """
    check_free(target, replace=replace)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        hidden = Path(mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
    except OSError as error:
        raise CheckpointError(f"{target}: cannot be made: {error.strerror}") from error
    try:
        # One level deeper: the hidden folder itself is closed to other users.
        made = hidden / "new"
        made.mkdir()
        yield made
        _put(made, target, hidden / "old", replace)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def check_free(target: Path, *, replace: bool = False) -> None:
    """Refuse a path that exists, unless it is an empty folder or a model's that gives way."""
    if not os.path.lexists(target) or (target.is_dir() and not any(target.iterdir())):
        return
    if not replace:
        raise CheckpointError(f"{target}: exists. Name another folder, or replace it with --force")
    if not (target / "config.json").is_file():
        raise CheckpointError(f"{target}: is no model's folder, so it is not replaced")


def check_apart(target: Path, source: Path) -> None:
    """Refuse a path to write to that is the source, or contains it."""
    # Path.resolve raises on circular links; this does not.
    place = Path(os.path.realpath(source))
    if Path(os.path.realpath(target)) in (place, *place.parents):
        raise CheckpointError(f"{target}: contains the source. Name another folder")


def _put(made: Path, target: Path, old: Path, replace: bool) -> None:
    try:
        if replace and target.exists():
            target.rename(old)
        made.rename(target)
    except OSError as error:
        if old.exists() and not target.exists():
            old.rename(target)
        raise CheckpointError(f"{target}: cannot be put there: {error.strerror}") from error
