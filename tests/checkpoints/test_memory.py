"""Reading a head takes the memory of a head, however large the checkpoint is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SIZE = 2 * 10**9
HIDDEN, EXPERTS, INNER = 2048, 64, 512

PEAK = """
import resource, sys
from pathlib import Path
import mlx.core as mx
mx.set_default_device(mx.cpu)
from mlx_lm.models import qwen3_5
from speculate.checkpoints import find_head, read_head
from speculate.models.mtp import build_head
from tests.checkpoints.test_memory import config
def peak():
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Not ru_maxrss: on Linux that starts with what the process had that started this one.
    status = Path("/proc/self/status").read_text().split()
    return int(status[status.index("VmHWM:") + 1]) * 1024
stock = qwen3_5.Model(qwen3_5.ModelArgs.from_dict(config(sys.argv[2] == "experts")))
stock.set_dtype(mx.bfloat16)
mx.eval(mx.zeros((1024,)))
before = peak()
head = build_head(stock, read_head(find_head(Path(sys.argv[1]))))
print(peak() - before)
"""


def config(experts: bool) -> dict[str, object]:
    found = {"model_type": "qwen3_5", "hidden_size": HIDDEN, "num_hidden_layers": 4}
    found |= {"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128}
    found |= {"intermediate_size": 4 * HIDDEN, "vocab_size": 1024}
    if experts:
        found |= {"num_experts": EXPERTS, "num_experts_per_tok": 2}
        found |= {"moe_intermediate_size": INNER, "shared_expert_intermediate_size": INNER}
    return found


def shapes(experts: bool) -> dict[str, list[int]]:
    found = {"fc": [HIDDEN, 2 * HIDDEN], "norm": [HIDDEN]}
    found |= {f"pre_fc_norm_{part}": [HIDDEN] for part in ("embedding", "hidden")}
    layer = {"input_layernorm": [HIDDEN], "post_attention_layernorm": [HIDDEN]}
    layer |= {"self_attn.q_norm": [128], "self_attn.k_norm": [128]}
    layer |= {"self_attn.q_proj": [4096, HIDDEN], "self_attn.o_proj": [HIDDEN, 2048]}
    layer |= {f"self_attn.{part}_proj": [512, HIDDEN] for part in "kv"}
    mlps = {"mlp": 4 * HIDDEN}
    if experts:
        mlps = {f"mlp.experts.{e}": INNER for e in range(EXPERTS)} | {"mlp.shared_expert": INNER}
        layer |= {"mlp.gate": [EXPERTS, HIDDEN], "mlp.shared_expert_gate": [1, HIDDEN]}
    for where, inner in mlps.items():
        layer |= {f"{where}.{part}_proj": [inner, HIDDEN] for part in ("gate", "up")}
        layer |= {f"{where}.down_proj": [HIDDEN, inner]}
    found |= {f"layers.0.{name}": shape for name, shape in layer.items()}
    return {f"mtp.{name}.weight": shape for name, shape in found.items()}


def write(path: Path, experts: bool) -> int:
    """A checkpoint of 2 GB, its head between two parts of the trunk; the head's bytes."""
    entries, place, head = {}, 0, 0
    names = {"model.a": [SIZE // 4], **shapes(experts), "model.b": [SIZE // 4]}
    for name, shape in names.items():
        size = 2
        for side in shape:
            size *= side
        span = [place, place + size]
        entries[name] = {"dtype": "BF16", "shape": shape, "data_offsets": span}
        place += size
        head += size if name.startswith("mtp.") else 0
    text = json.dumps(entries).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _ in range(place // 2**20):
            file.write(b"\0?" * 2**19)
        file.write(b"\0?" * (place % 2**20 // 2))
    return head


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_a_head_of_a_2_gb_checkpoint(tmp_path: Path, kind: str) -> None:
    size = write(tmp_path / "model.safetensors", kind == "experts")
    (tmp_path / "config.json").write_text(json.dumps(config(kind == "experts")))
    command = [sys.executable, "-c", PEAK, str(tmp_path), kind]
    ran = subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    print(f"{kind}: head {size / 1e6:.0f} MB, peak {int(ran.stdout) / 1e6:.0f} MB more")
    assert size / 2 < int(ran.stdout) < size + 100e6
