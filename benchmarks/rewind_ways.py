"""Five ways of rewinding a Gated DeltaNet hybrid. Two are the library's; three lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, cast

import attrs
import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.models import gated_delta, qwen3_5

from speculate import SpeculativeModel
from speculate.backends.arrays import RewindableArraysCache
from speculate.models.adapter import DenseAdapter
from speculate.models.gated_delta import BlockRecord, FusedReplay
from speculate.models.qwen3_5 import Qwen35Adapter
from speculate.protocols import Recurrence, StockModel

VOCAB: Final = 1024


@attrs.frozen
class Shape:
    """A model: 12 layers, of which 9 are recurrent."""

    hidden: int
    key_heads: int
    value_heads: int
    width: int

    def build(self) -> qwen3_5.Model:
        """A Qwen3.5 with random weights."""
        text = {
            "model_type": "qwen3_5_text",
            "hidden_size": self.hidden,
            "intermediate_size": 3 * self.hidden,
            "num_hidden_layers": 12,
            "num_attention_heads": self.hidden // 64,
            "num_key_value_heads": max(1, self.hidden // 256),
            "head_dim": 64,
            "vocab_size": VOCAB,
            "linear_num_value_heads": self.value_heads,
            "linear_num_key_heads": self.key_heads,
            "linear_key_head_dim": self.width,
            "linear_value_head_dim": self.width,
            "linear_conv_kernel_dim": 4,
            "full_attention_interval": 4,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6,
        }
        mx.random.seed(0)
        config = {"model_type": "qwen3_5", "text_config": text}
        model = qwen3_5.Model(qwen3_5.ModelArgs.from_dict(config))
        model.update(tree_map(lambda weight: weight.astype(mx.float32), model.parameters()))
        model.eval()
        mx.eval(model.parameters())
        return model


def states_of(caches: Sequence[object]) -> list[RewindableArraysCache]:
    return [cache for cache in caches if isinstance(cache, RewindableArraysCache)]


# The ways: what drives the model, and what is done right after a rejection.


def nothing(caches: Sequence[object]) -> None:
    """The next block goes on from what was noted."""


def replay_each(caches: Sequence[object]) -> None:
    """Every layer runs the rows that stay, in a call of its own."""
    for cache in states_of(caches):
        cache.entries()


def replay_all(caches: Sequence[object]) -> None:
    """One call runs the rows that stay, in all layers: their states are stacked and cut."""
    noted = [(cache, cache.deferred()) for cache in states_of(caches)]
    parts: list[list[mx.array]] = []
    for _, note in noted:
        block = cast(BlockRecord, note.restore) if note else None
        replay = cast(FusedReplay, block.states) if block else None
        if note is None or replay is None or replay.before is None:
            return
        layer, rows = replay.layer, replay.inputs.first(replay.fused + note.num_tokens)
        g = gated_delta.compute_g(layer.A_log, rows.a, layer.dt_bias)
        parts.append([*rows.split(layer), g, mx.sigmoid(rows.b), replay.before])
    stacked = [mx.concatenate([*part]) for part in zip(*parts, strict=True)]
    run = gated_delta.gated_delta_kernel if mx.metal.is_available() else gated_delta.gated_delta_ops
    _, after = run(*stacked)
    for index, (cache, note) in enumerate(noted):
        if note is not None:
            window, _ = cast(BlockRecord, note.restore).resume(note.num_tokens)
            cache.replace([mx.contiguous(window), after[index : index + 1]])


def adapted(stock: qwen3_5.Model, recurrence: Recurrence) -> SpeculativeModel:
    return Qwen35Adapter(cast(StockModel, stock), recurrence=recurrence)


def whole_blocks(stock: qwen3_5.Model) -> SpeculativeModel:
    """Its stock layers record nothing: what stays is fed again, in front of the next block."""
    return DenseAdapter(cast(StockModel, stock.language_model))


Way = tuple[Callable[[qwen3_5.Model], SpeculativeModel], Callable[[Sequence[object]], None]]
WAYS: Final[dict[str, Way]] = {
    "every state, pick": (lambda stock: adapted(stock, "ops"), nothing),
    "fused replay": (lambda stock: adapted(stock, "kernel"), nothing),
    "replay layer by layer": (lambda stock: adapted(stock, "kernel"), replay_each),
    "one replay for all layers": (lambda stock: adapted(stock, "kernel"), replay_all),
    "snapshot, feed again": (whole_blocks, nothing),
}
