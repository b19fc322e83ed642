"""mlx-lm's own conversion of a trunk, with its head beside it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, cast

import attrs
import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.utils import tree_map_with_path
from mlx_lm.utils import (
    create_model_card,
    dequantize_model,
    load_tokenizer,
    quantize_model,
    save_config,
    save_model,
)

from speculate.checkpoints.export import packing_entry, save
from speculate.checkpoints.folder import read_json, section
from speculate.checkpoints.head import HeadTensors
from speculate.checkpoints.quantization import Quantization
from speculate.errors import CheckpointError, OptionError
from speculate.protocols import StockModel

Choice = Callable[[str], Quantization | None]
"""How to pack a module, by its name without prefix; `None` leaves it plain."""

ROUTERS: Final = ("mlp.gate", "mlp.shared_expert_gate")
FINE: Final = Quantization(bits=8, group_size=64, mode="affine")
"""What a trunk's own predicate chooses for routers, whatever the rest is packed like."""

PARTS: Final = ("weight", "scales", "biases", "global_scale")


def as_trunks(packing: Quantization) -> Choice:
    """The choice that the trunks of these families make: everything alike, routers finer."""

    def choose(module: str) -> Quantization | None:
        return FINE if module.endswith(ROUTERS) else packing

    return choose


def quantize_head(
    head: HeadTensors, choose: Choice, done: Callable[[str], None] = lambda _: None
) -> HeadTensors:
    """Pack every plain matrix whose width the choice divides. Synchronises.

    Args:
        head: From `read_head`.
        choose: How to pack each module.
        done: Called with the name of each module that was looked at.
    """
    weights, packings = dict(head.weights), dict(head.quantization)
    for module in plain_matrices(head):
        packing, matrix = choose(module), weights[f"{module}.weight"]
        if packing is not None and matrix.shape[-1] % packing.group_size == 0:
            packed = mx.quantize(matrix, packing.group_size, packing.bits, mode=packing.mode)
            mx.eval(packed)
            # zip stops early: only affine has biases.
            parts = zip(PARTS, packed, strict=False)
            weights.update((f"{module}.{part}", array) for part, array in parts)
            packings[module] = packing
        done(module)
    return attrs.evolve(head, weights=weights, quantization=packings)


def dequantize_head(
    head: HeadTensors, *, keep: Choice = lambda _: None, dtype: mx.Dtype | None = None
) -> HeadTensors:
    """Unpack quantised matrices.

    Args:
        head: From `read_head`.
        keep: A packing that may stay as it is, by module.
        dtype: Of the result; by default that of the head's norms.

    Raises:
        CheckpointError: Experts have a scale of their own each, which only a GPU unpacks.
    """
    dtype = dtype or head.weights["norm.weight"].dtype
    weights, packings = dict(head.weights), dict(head.quantization)
    for module, packing in head.quantization.items():
        if keep(module) == packing:
            continue
        if packing.global_scale:
            raise CheckpointError(f"{module}: has a scale for each expert, and cannot be unpacked")
        parts = [weights.pop(f"{module}.{part}", None) for part in PARTS[:3]]
        weights[f"{module}.weight"] = _unpack(parts, packing, dtype)
        del packings[module]
    return attrs.evolve(head, weights=weights, quantization=packings)


def cast_head(head: HeadTensors, dtype: mx.Dtype) -> HeadTensors:
    """Give a head's floating-point numbers another type."""

    def cast(name: str, array: mx.array) -> mx.array:
        keep = name.endswith(".global_scale") or not mx.issubdtype(array.dtype, mx.floating)
        return array if keep else array.astype(dtype)

    return attrs.evolve(head, weights={n: cast(n, a) for n, a in head.weights.items()})


def plain_matrices(head: HeadTensors) -> list[str]:
    """Modules that could be quantised, and are not."""
    found = [
        name.removesuffix(".weight")
        for name, array in head.weights.items()
        if name.endswith(".weight") and array.ndim > 1
    ]
    return [module for module in found if module not in head.quantization]


def _unpack(parts: list[mx.array | None], packing: Quantization, dtype: mx.Dtype) -> mx.array:
    weight, scales, biases = parts
    if weight is None or scales is None:
        raise CheckpointError("a quantised matrix has lost its scales")
    return mx.dequantize(
        weight, scales, biases, packing.group_size, packing.bits, packing.mode, dtype=dtype
    )


HEAD_FILE: Final = "mtp.safetensors"
"""Stock mlx-lm loads `model*.safetensors` and does not see this one."""

PREFIX: Final = "mtp."
COPIED: Final = ("*.py", "generation_config.json", "config.*.json")
"""As mlx-lm does, and the last, which a `configuration_files` in `config.json` may name."""

DEFAULTS: Final = {"affine": (64, 4), "mxfp4": (32, 4), "nvfp4": (16, 4), "mxfp8": (32, 8)}
"""Group and bits for each mode, as in mlx-lm."""

DTYPES: Final = {"float16": mx.float16, "bfloat16": mx.bfloat16, "float32": mx.float32}

Predicate = Callable[[str, Module], bool | dict[str, object]]


@attrs.frozen
class Conversion:
    """What to do to a model; as the options of `mlx_lm.convert`.

    Attributes:
        quantize: Quantise what is not.
        bits: For `quantize`; by default what mlx-lm takes for the mode.
        group_size: Likewise.
        mode: `affine`, `mxfp4`, `nvfp4` or `mxfp8`.
        dtype: Of what is not quantised; by default what the config says.
        dequantize: Unpack what is quantised.
    """

    quantize: bool = False
    bits: int | None = None
    group_size: int | None = None
    mode: str = "affine"
    dtype: str | None = None
    dequantize: bool = False

    def __attrs_post_init__(self) -> None:
        if self.quantize and self.dequantize:
            raise OptionError("choose either quantize or dequantize, not both")

    def packing(self) -> Quantization:
        """Bits, group and mode, the defaults filled in."""
        group, bits = DEFAULTS[self.mode]
        return Quantization(self.bits or bits, self.group_size or group, self.mode)


def convert(
    stock: StockModel,
    config: dict[str, object],
    head: HeadTensors,
    conversion: Conversion,
    source: Path,
    folder: Path,
) -> None:
    """Write a converted model into a folder, its head in a file of its own.

    Every file but that one is what `mlx_lm.convert` writes, and `config.json` where the
    head is packed otherwise than the rest.

    Args:
        stock: The trunk, from `load_trunk(..., lazy=True)`. It is used up.
        config: Its config.
        head: Its head.
        conversion: What to do.
        source: The folder they are from.
        folder: Where to.

    Raises:
        CheckpointError: mlx-lm cannot convert it so.
    """
    module = cast(Module, stock)
    dtype = _dtype(conversion, config)
    predicate: Predicate | None = getattr(module, "quant_predicate", None)
    if dtype is not None:
        _cast(module, dtype)
        head = cast_head(head, dtype)
    try:
        if conversion.quantize:
            asked = (conversion.group_size, conversion.bits, conversion.mode)
            module, config = quantize_model(module, config, *asked)
            head = quantize_head(head, _choice(predicate, conversion.packing()))
        if conversion.dequantize:
            config.pop("quantization", None)
            config.pop("quantization_config", None)
            module, head = dequantize_model(module), dequantize_head(head, dtype=dtype)
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{source}: mlx-lm cannot convert it so: {error}") from error
    save(folder / HEAD_FILE, {PREFIX + name: a for name, a in head.weights.items()})
    _save(folder, source, module, config)
    _record(folder / "config.json", head.quantization)


def _save(folder: Path, source: Path, module: Module, config: dict[str, object]) -> None:
    """Write what mlx-lm's `save` writes, `config.json` last: half of it then loads nowhere."""
    tokenizer = load_tokenizer(source, None, config.get("eos_token_id"))
    sees = "vision_tower" in cast(Mapping[str, object], getattr(module, "model", {}))
    save_model(folder, module, donate_model=True)
    tokenizer.save_pretrained(folder)
    for pattern in COPIED:
        for path in source.glob(pattern):
            shutil.copy(path, folder)
    create_model_card(folder, None)
    save_config(config, folder / "config.json", keep_vision_config=sees)


def _dtype(conversion: Conversion, config: Mapping[str, object]) -> mx.Dtype | None:
    """As mlx-lm: what was asked for, or what the config names."""
    inner = section(config, "text_config").get("dtype")
    names = (conversion.dtype, config.get("torch_dtype"), inner)
    name = next((name for name in names if name is not None), None)
    return DTYPES.get(name) if isinstance(name, str) else None


def _cast(module: Module, dtype: mx.Dtype) -> None:
    """As mlx-lm."""
    may: Callable[[str], bool] = getattr(module, "cast_predicate", lambda _: True)

    def convert_one(name: str, array: mx.array) -> mx.array:
        floating = mx.issubdtype(array.dtype, mx.floating)
        return array.astype(dtype) if floating and may(name) else array

    module.update(tree_map_with_path(convert_one, module.parameters()))


def _choice(
    predicate: Predicate | None, packing: Quantization
) -> Callable[[str], Quantization | None]:
    """The model's own predicate, asked about its head."""

    def choose(name: str) -> Quantization | None:
        found = True if predicate is None else predicate(PREFIX + name, Module())
        if not isinstance(found, dict):
            return packing if found else None
        bits, group = found.get("bits", packing.bits), found.get("group_size", packing.group_size)
        return Quantization(cast(int, bits), cast(int, group), str(found.get("mode", "affine")))

    return choose


def _record(path: Path, packings: Mapping[str, Quantization]) -> None:
    """Name the head's packings that are not the trunk's, for software that goes by a config."""
    config = read_json(path)
    packed = config.get("quantization")
    if not isinstance(packed, dict):
        return
    trunks = (packed.get("bits"), packed.get("group_size"), packed.get("mode", "affine"))
    entries = {
        PREFIX + module: packing_entry(packing)
        for module, packing in packings.items()
        if (packing.bits, packing.group_size, packing.mode) != trunks or packing.global_scale
    }
    if entries:
        config["quantization"] = config["quantization_config"] = {**packed, **entries}
        path.write_text(json.dumps(dict(sorted(config.items())), indent=4))
