"""mlx-lm's conversion of a trunk, with its head in a file of its own."""

from __future__ import annotations

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
from speculate.checkpoints.folder import section
from speculate.checkpoints.head import HeadTensors
from speculate.checkpoints.quantization import Quantization, dequantize, plain_matrices
from speculate.errors import CheckpointError, OptionError
from speculate.protocols import StockModel

QuantizationChoice = Callable[[str], Quantization | None]
"""Returns how to quantise a module, by its name without prefix; `None` leaves it unquantised."""

ROUTERS: Final = ("mlp.gate", "mlp.shared_expert_gate")
FINE: Final = Quantization(bits=8, group_size=64, mode="affine")
"""Ends of the names of routers, and their quantisation by mlx-lm's own predicate."""

HEAD_FILE: Final = "mtp.safetensors"
PREFIX: Final = "mtp."
"""The head's file, which mlx-lm ignores: it loads `model*.safetensors`; and the names' prefix."""

DEFAULTS: Final = {"affine": (64, 4), "mxfp4": (32, 4), "nvfp4": (16, 4), "mxfp8": (32, 8)}
"""Group size and bits of each mode, as in mlx-lm."""

DTYPES: Final = {"float16": mx.float16, "bfloat16": mx.bfloat16, "float32": mx.float32}
"""Dtypes that a conversion can cast to."""

Predicate = Callable[[str, Module], bool | dict[str, object]]
"""mlx-lm's choice of how to quantise a module: `False`, `True`, or its own options."""


def as_trunks(packing: Quantization) -> QuantizationChoice:
    """Return the choice of these families' trunks: one quantisation, a finer one for routers."""
    return lambda module: FINE if module.endswith(ROUTERS) else packing


def quantize_head(
    head: HeadTensors, choose: QuantizationChoice, done: Callable[[str], None] = lambda _: None
) -> HeadTensors:
    """Quantise every plain matrix whose width is a multiple of the group size. Synchronises.

    `done` is called with the name of each module after it was processed.
    """
    weights, packings = dict(head.weights), dict(head.quantization)
    for module in plain_matrices(weights, packings):
        packing, matrix = choose(module), weights[f"{module}.weight"]
        if packing is not None and matrix.shape[-1] % packing.group_size == 0:
            packed = mx.quantize(matrix, packing.group_size, packing.bits, mode=packing.mode)
            mx.eval(packed)
            # zip stops early: only affine has biases.
            for part, array in zip(("weight", "scales", "biases"), packed, strict=False):
                weights[f"{module}.{part}"] = array
            packings[module] = packing
        done(module)
    return attrs.evolve(head, weights=weights, quantization=packings)


def dequantize_head(
    head: HeadTensors, *, keep: QuantizationChoice = lambda _: None, dtype: mx.Dtype | None = None
) -> HeadTensors:
    """Dequantise the matrices that do not have the quantisation that they may keep.

    Their dtype is that of the head's norms by default. Errors are those of `dequantize`.
    """
    kept = {m: packing for m, packing in head.quantization.items() if keep(m) == packing}
    packings = {m: packing for m, packing in head.quantization.items() if m not in kept}
    weights = dequantize(head.weights, packings, dtype or head.weights["norm.weight"].dtype)
    return attrs.evolve(head, weights=weights, quantization=kept)


@attrs.frozen
class Conversion:
    """Options of a conversion, as those of `mlx_lm.convert`.

    Attributes:
        quantize: Quantise unquantised weights.
        bits: Bits a weight, for `quantize`; by default mlx-lm's for the mode.
        group_size: Weights that share a scale, likewise.
        mode: `affine`, `mxfp4`, `nvfp4` or `mxfp8`.
        dtype: Dtype of unquantised weights; by default the config's.
        dequantize: Dequantise quantised weights.
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


def convert(
    stock: StockModel,
    config: dict[str, object],
    head: HeadTensors,
    conversion: Conversion,
    source: Path,
    folder: Path,
) -> None:
    """Write a converted model into a folder, with its head in a file of its own.

    The other files are those that `mlx_lm.convert` writes, except for `config.json` if the head is
    quantised differently from the trunk. The trunk comes from `load_trunk(source, lazy=True)` with
    its config, and cannot be used afterwards. Refuses options that mlx-lm cannot convert with.
    """
    module = cast(Module, stock)
    dtype = _dtype(conversion, config)
    predicate: Predicate | None = getattr(module, "quant_predicate", None)
    if dtype is not None:
        may: Callable[[str], bool] = getattr(module, "cast_predicate", lambda _: True)
        module.update(tree_map_with_path(_casting(dtype, may), module.parameters()))
        cast_one = _casting(dtype, lambda name: not name.endswith(".global_scale"))
        weights = {name: cast_one(name, array) for name, array in head.weights.items()}
        head = attrs.evolve(head, weights=weights)
    try:
        if conversion.quantize:
            group, bits = DEFAULTS[conversion.mode]
            group, bits = conversion.group_size or group, conversion.bits or bits
            module, config = quantize_model(module, config, group, bits, conversion.mode)
            packing = Quantization(bits, group, conversion.mode)
            head = quantize_head(head, _choice(predicate, packing))
        if conversion.dequantize:
            config.pop("quantization", None)
            config.pop("quantization_config", None)
            module, head = dequantize_model(module), dequantize_head(head, dtype=dtype)
    except (ValueError, TypeError) as error:
        text = f"{source}: mlx-lm cannot convert it with these options: {error}"
        raise CheckpointError(text) from error
    save(folder / HEAD_FILE, {PREFIX + name: a for name, a in head.weights.items()})
    _save(folder, source, module, _add_head(config, head.quantization))


def _save(folder: Path, source: Path, module: Module, config: dict[str, object]) -> None:
    """Write the files of mlx-lm's `save`, `config.json` last: a partial folder then never loads."""
    tokenizer = load_tokenizer(source, None, config.get("eos_token_id"))
    sees = "vision_tower" in cast(Mapping[str, object], getattr(module, "model", {}))
    save_model(folder, module, donate_model=True)
    tokenizer.save_pretrained(folder)
    # As mlx-lm, and configs that `configuration_files` of config.json names.
    for pattern in ("*.py", "generation_config.json", "config.*.json"):
        for path in source.glob(pattern):
            shutil.copy(path, folder)
    create_model_card(folder, None)
    save_config(config, folder / "config.json", keep_vision_config=sees)


def _dtype(conversion: Conversion, config: Mapping[str, object]) -> mx.Dtype | None:
    """Return the dtype to cast to, as mlx-lm does: the option, or the config's."""
    name = conversion.dtype or config.get("torch_dtype")
    if name is None:
        name = section(config, "text_config").get("dtype")
    return DTYPES.get(name) if isinstance(name, str) else None


def _casting(dtype: mx.Dtype, may: Callable[[str], bool]) -> Callable[[str, mx.array], mx.array]:
    def cast_one(name: str, array: mx.array) -> mx.array:
        floating = mx.issubdtype(array.dtype, mx.floating)
        return array.astype(dtype) if floating and may(name) else array

    return cast_one


def _choice(predicate: Predicate | None, packing: Quantization) -> QuantizationChoice:
    """Return a choice that applies the model's own predicate to its head."""

    def choose(name: str) -> Quantization | None:
        found = True if predicate is None else predicate(PREFIX + name, Module())
        if not isinstance(found, dict):
            return packing if found else None
        bits, group = found.get("bits", packing.bits), found.get("group_size", packing.group_size)
        return Quantization(cast(int, bits), cast(int, group), str(found.get("mode", "affine")))

    return choose


def _add_head(config: dict[str, object], packings: Mapping[str, Quantization]) -> dict[str, object]:
    """Return the config with those quantisations of the head that differ from the trunk's."""
    packed = config.get("quantization")
    if not isinstance(packed, dict):
        return config
    trunk = {key: packed.get(key) for key in ("group_size", "bits")}
    trunk["mode"] = packed.get("mode", "affine")
    entries = {PREFIX + module: packing_entry(packing) for module, packing in packings.items()}
    own = {module: entry for module, entry in entries.items() if entry != trunk}
    return {**config, "quantization": {**packed, **own}}
