"""Checks that mlx-vlm's drafter loads the heads that `extract-head` and `convert` write.

    python3 -m venv vlm && vlm/bin/pip install 'mlx-vlm==0.7.10' 'mlx[cpu]'
    .venv/bin/python tools/check_mlx_vlm.py vlm/bin/python

Runs two processes: this one extracts heads and computes their logits, the other one loads them
with mlx-vlm alone and computes its own. Prints the largest difference for each head.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import mlx.core as mx

sys.path.insert(0, str(Path(__file__).parents[1]))

from speculate.checkpoints import find_head, read_head
from speculate.cli.main import main as speculate
from speculate.models.mtp import QwenMTPHead, build_head
from tests.support import checkpoint_files as tiny
from tests.support import tokenizers as words

ROWS: Final = 24
TOLERANCE: Final = 1e-5
"""Allowed difference as a fraction of the largest logit: float32 sums may be reordered."""

THEIRS: Final = """
import json, sys
import mlx.core as mx, mlx.nn as nn
from importlib.metadata import version
from mlx_vlm.speculative.drafters import load_drafter

class Inner: pass

def target(given):
    inner, outer = Inner(), Inner()
    inner.embed_tokens = nn.Embedding(*given["embedding"].shape)
    inner.embed_tokens.weight = given["embedding"]
    outer.model = inner
    if "output" in given:
        outer.lm_head = nn.Linear(*given["output"].shape[::-1], bias=False)
        outer.lm_head.weight = given["output"]
    return outer

found = {"versions": [version("mlx-vlm"), version("mlx")]}
for folder in sys.argv[1:]:
    given = mx.load(folder + "/rows.safetensors")
    try:
        drafter, kind = load_drafter(folder + "/drafter")
    except Exception as error:
        found[folder] = f"does not load: {type(error).__name__}: {error}"
        continue
    drafter.reset(target(given))
    hidden = drafter._forward_tokens(given["tokens"], given["hidden"], mx.int32)
    difference = mx.abs(drafter._lm_head_fn(hidden) - given["logits"]).max()
    found[folder] = [kind, difference.item(), mx.abs(given["logits"]).max().item()]
print(json.dumps(found))
"""


def quantise(head: tiny.Weights) -> tiny.Weights:
    modules = tiny.matrices(head)
    fine = {m: (8, 64, "affine") for m in modules if m.endswith(("mlp.gate", "expert_gate"))}
    return tiny.quantised(head, {**dict.fromkeys(modules, (4, 32, "affine")), **fine})


def mixed(head: tiny.Weights) -> tiny.Weights:
    choice = {
        "fc": (6, 64, "affine"),
        "layers.0.self_attn.q_proj": (4, 32, "affine"),
        "layers.0.self_attn.v_proj": (8, 32, "mxfp8"),
        "layers.0.mlp.down_proj": (3, 32, "affine"),
    }
    return tiny.quantised(head, choice)


def raw_and_fused(head: tiny.Weights) -> tiny.Weights:
    return tiny.fused(tiny.raw(head))


def raw_and_single(head: tiny.Weights) -> tiny.Weights:
    return tiny.single(tiny.raw(head))


TWO_LAYERS: Final = "two layers"
"""mlx-vlm 0.7.10 refuses this case: it loses the number of layers, and builds one."""

CONVERTED: Final = "experts, a whole model by `speculate convert -q`"

Layout = Callable[[tiny.Weights], tiny.Weights]
CASES: Final[dict[str, tuple[str, dict[str, Any], Layout, list[str]]]] = {
    "dense, raw": ("qwen3_5", {}, tiny.raw, []),
    "dense, raw, quantised by us": ("qwen3_5", {}, tiny.raw, ["--quantize", "4,64"]),
    "dense, packed in four ways": ("qwen3_5", {}, mixed, []),
    "dense under a trunk of experts": ("qwen3_5_moe", {"inner": 128}, dict, []),
    "experts, raw and fused": ("qwen3_5_moe", {"experts": True}, raw_and_fused, []),
    "experts, 4 bits, routers 8": ("qwen3_5_moe", {"experts": True}, quantise, []),
    "Qwen3-Next, experts one by one": ("qwen3_next", {"experts": True}, raw_and_single, []),
    CONVERTED: ("qwen3_5_moe", {"experts": True}, raw_and_fused, ["-q", "--q-group-size", "32"]),
    TWO_LAYERS: ("qwen3_5", {"layers": 2}, dict, []),
}
ROPE: Final = {"type": "default", "rope_theta": 100_000, "partial_rotary_factor": 0.25}
"""mlx-lm's default. mlx-vlm's default splits the positions of a wider head."""


def prepare(folder: Path, name: str) -> None:
    family, shape, layout, options = CASES[name]
    model, stored = tiny.make_model(family), layout(tiny.make_head(**shape))
    files, config = {"mtp.safetensors": tiny.prefixed(stored)}, tiny.config(family)
    command, target = ["extract-head", "--output"], folder / "drafter"
    if name == CONVERTED:
        trunk = tiny.fused(tiny.trunk_weights(model, stored_raw=True))
        files["model.safetensors"], command = trunk, ["convert"]
        config["text_config"]["rope_parameters"] = {**ROPE, "mrope_section": [2, 0, 0]}
    source = tiny.write(folder / "source", files, config=config)
    words.fast_tokenizer().save_pretrained(source)
    places = [str(source), str(target)] if name == CONVERTED else [str(target), str(source)]
    assert speculate([*command, *places, *options]) == 0
    head = build_head(tiny.as_stock(model), read_head(find_head(target)))
    assert isinstance(head, QwenMTPHead)
    hidden, tokens = tiny.rows(ROWS)
    text = model.language_model if family != "qwen3_next" else model
    mx.save_safetensors(
        str(folder / "rows.safetensors"),
        {
            "hidden": hidden,
            "tokens": tokens.astype(mx.int32),
            "logits": head.step(hidden, tokens, head.make_cache()).logits,
            "embedding": text.model.embed_tokens.weight,
            "output": text.lm_head.weight,
        },
    )


def main(python: str) -> int:
    with TemporaryDirectory() as place:
        folders = {name: Path(place) / str(number) for number, name in enumerate(CASES)}
        for name, folder in folders.items():
            folder.mkdir()
            prepare(folder, name)
        command = [python, "-c", THEIRS, *map(str, folders.values())]
        ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found = json.loads(ran.stdout.splitlines()[-1])
        print("mlx-vlm {}, mlx {}".format(*found["versions"]))
        return max(report(name, found[str(folder)]) for name, folder in folders.items())


def report(name: str, result: str | list[Any]) -> int:
    """Print a result; 1 if it is not the one that was expected."""
    if isinstance(result, str):
        print(f"{'known ' if name == TWO_LAYERS else 'FAILED'}  {name}: {result.splitlines()[0]}")
        return int(name != TWO_LAYERS)
    kind, difference, largest = result
    same = difference <= TOLERANCE * largest
    text = f"{kind} drafter, logits differ by {difference:.2g} of {largest:.3g} at most"
    print(f"{'same  ' if same else 'FAILED'}  {name}: {text}")
    return int(not same)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
