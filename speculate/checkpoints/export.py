"""Writing a head as a checkpoint of its own, in the form in which such are published."""

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
from typing import Final, cast

import attrs
import mlx.core as mx
from mlx_lm.models import qwen3_5, qwen3_next

from speculate.checkpoints.folder import section
from speculate.checkpoints.head import DEDICATED, HeadFiles, HeadTensors
from speculate.checkpoints.names import DENSE
from speculate.checkpoints.quantization import Quantization
from speculate.errors import CheckpointError

MODEL_TYPE: Final = "qwen3_5_mtp"
LAYERS: Final = "mtp_num_hidden_layers"
TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer_config.json", "vocab.json")

_NOT_OF_THE_TEXT: Final = frozenset(
    {"architectures", "auto_map", "text_config", "vision_config", "transformers_version"}
    | {"quantization", "quantization_config", "mlx_lm_version"}
)
Args = qwen3_5.TextModelArgs | qwen3_next.ModelArgs


def write_drafter(folder: Path, head: HeadTensors, config: Mapping[str, object]) -> None:
    """Write weights and config into a folder; the config last.

    Args:
        folder: An empty one.
        head: From `read_head`.
        config: From `drafter_config`.
    """
    save(folder / "model.safetensors", head.weights)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def save(path: Path, weights: Mapping[str, mx.array]) -> None:
    """Write a safetensors file, marked as one in mlx's conventions."""
    mx.save_safetensors(str(path), dict(weights), metadata={"format": "mlx"})


def copy_tokenizer(source: Path, folder: Path) -> None:
    """Copy what there is of a tokenizer, as published drafters have it."""
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def drafter_config(files: HeadFiles, head: HeadTensors) -> dict[str, object]:
    """The config of a drafter.

    Args:
        files: Where the head is from, and the config of its model.
        head: From `read_head`.

    Raises:
        CheckpointError: That config does not describe a model with such a head.
    """
    try:
        text = _text_config(files.config, head)
    except CheckpointError as error:
        raise CheckpointError(f"{files.folder}: {error}") from error
    return {
        "model_type": MODEL_TYPE,
        "block_size": len(head.experts) + 2,
        "tie_word_embeddings": text["tie_word_embeddings"],
        "text_config": text,
        **_quantization(head.quantization),
    }


def packing_entry(packing: Quantization) -> dict[str, object]:
    """A packing as a config has it."""
    entry = {"group_size": packing.group_size, "bits": packing.bits, "mode": packing.mode}
    return {**entry, "global_scale": True} if packing.global_scale else entry


def _text_config(config: Mapping[str, object], head: HeadTensors) -> dict[str, object]:
    source = section(config, "text_config") or config
    # What reads a config may also write into it.
    text = deepcopy({key: value for key, value in source.items() if key not in _NOT_OF_THE_TEXT})
    args = _args(deepcopy(text))
    defaults = {key: value for key, value in asdict(args).items() if key != "rope_scaling"}
    text = {**defaults, **text, "rope_parameters": _rope(args), LAYERS: len(head.experts)}
    text["tie_word_embeddings"] = args.tie_word_embeddings
    text[DEDICATED] = False
    if args.num_experts and all(layout == DENSE for layout in head.experts):
        # The trunk has experts, and its head has none.
        rows = head.weights["layers.0.mlp.gate_proj.weight"].shape[0]
        text |= {"model_type": "qwen3_5_text", "num_experts": 0, "intermediate_size": rows}
    return text


def _args(text: dict[str, object]) -> Args:
    """A text model's config as mlx-lm understands it, its defaults filled in."""
    if "hidden_size" not in text:
        raise CheckpointError(
            "there is no config.json that describes the head's model. Put its trunk's there"
        )
    try:
        if text.get("model_type") == "qwen3_next":
            return cast(Args, qwen3_next.ModelArgs.from_dict(text))
        return cast(Args, qwen3_5.TextModelArgs.from_dict(text))
    except (TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"config.json: describes no model with a head: {error}") from error


def _rope(args: Args) -> dict[str, object]:
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
    others = {module: packing for module, packing in packings.items() if packing != common}
    found: dict[str, object] = packing_entry(common)
    found |= {module: packing_entry(packing) for module, packing in others.items()}
    return {"quantization": found, "quantization_config": found}


@contextmanager
def new_folder(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """Give a folder to fill, which becomes `target` when the body has ended well.

    Until then it lies in a hidden one beside `target`, which stays as it was. A process
    that is killed leaves that hidden folder behind, and nothing else.

    Args:
        target: What it will be called.
        replace: Take the place of a model's folder that is there already.

    Raises:
        CheckpointError: There is something at `target` that is not to be replaced, or the
            folder cannot be made.
    """
    check_free(target, replace=replace)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        hidden = Path(mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
    except OSError as error:
        raise CheckpointError(f"{target}: cannot be made: {error.strerror}") from error
    try:
        # One deeper: the hidden folder itself is closed to other users.
        made = hidden / "new"
        made.mkdir()
        yield made
        _put(made, target, hidden / "old", replace)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


def check_free(target: Path, *, replace: bool = False) -> None:
    """Refuse a name that is taken.

    Args:
        target: The name.
        replace: Whether a model's folder may lose it.

    Raises:
        CheckpointError: Something is there that is not to be replaced.
    """
    if not os.path.lexists(target):
        return
    if target.is_dir() and not any(target.iterdir()):
        return
    if not replace:
        raise CheckpointError(f"{target}: exists. Name another folder, or replace it with --force")
    if not (target / "config.json").is_file():
        raise CheckpointError(f"{target}: is no model's folder, so it is not replaced")


def check_apart(target: Path, source: Path) -> None:
    """Refuse to replace what is read from.

    Raises:
        CheckpointError: `target` is `source`, or holds it.
    """
    # Path.resolve raises where links go round in a circle; this does not.
    place = Path(os.path.realpath(source))
    if Path(os.path.realpath(target)) in (place, *place.parents):
        raise CheckpointError(f"{target}: is where the source lies. Name another folder")


def _put(made: Path, target: Path, old: Path, replace: bool) -> None:
    try:
        if replace and target.exists():
            target.rename(old)
        made.rename(target)
    except OSError as error:
        if old.exists() and not target.exists():
            old.rename(target)
        raise CheckpointError(f"{target}: cannot be put there: {error.strerror}") from error
