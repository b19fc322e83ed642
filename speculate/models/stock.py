"""Protocols that describe mlx-lm's own objects to the type checker.

Adapters cast stock modules to them. These are declarations for the type checker only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import mlx.core as mx
from typing_extensions import Protocol

DeltaT = TypeVar("DeltaT")
"""The family's class of recurrent layers."""

Linear = Callable[[mx.array], mx.array]
"""A matrix, quantised or not, or an MLP."""

Attention = Callable[[mx.array, mx.array | str | None, object], mx.array]
"""An attention layer, or a decoder layer around one: hidden states, mask and cache."""


class Norm(Protocol):
    """An RMS norm."""

    weight: mx.array

    def __call__(self, x: mx.array, /) -> mx.array: ...


class Embedding(Protocol):
    """An embedding, quantised or not."""

    weight: mx.array

    def __call__(self, tokens: mx.array, /) -> mx.array: ...
    def as_linear(self, x: mx.array, /) -> mx.array: ...


class Trunk(Protocol):
    """The part of a model that ends with the final norm."""

    embed_tokens: Embedding
    norm: Norm


class TextModel(Protocol):
    """A model whose logits are its trunk's output times one matrix, `lm_head` if it has one."""

    @property
    def model(self) -> Trunk: ...


class DenseTrunk(Trunk, Protocol):
    """A trunk that is run by its own forward."""

    def __call__(self, inputs: mx.array, cache: Sequence[object], /) -> mx.array: ...


class StateSlots(Protocol):
    """A state cache: slot 0 for the conv window, slot 1 for the recurrent state."""

    def __getitem__(self, index: int, /) -> mx.array | None: ...
    def __setitem__(self, index: int, value: mx.array | None, /) -> None: ...
    def advance(self, n: int, /) -> None: ...


class GatedDeltaLayer(Protocol):
    """The part of a Gated DeltaNet layer that Qwen3.5 and Qwen3-Next share."""

    num_v_heads: int
    num_k_heads: int
    head_k_dim: int
    head_v_dim: int
    key_dim: int
    training: bool
    A_log: mx.array
    dt_bias: mx.array
    conv_kernel_size: int
    conv1d: Linear
    norm: Callable[[mx.array, mx.array], mx.array]
    out_proj: Linear


class SplitProjections(GatedDeltaLayer, Protocol):
    """Qwen3.5's Gated DeltaNet layer: one matrix for each input of the recurrence."""

    in_proj_qkv: Linear
    in_proj_z: Linear
    in_proj_a: Linear
    in_proj_b: Linear
    sharding_group: mx.distributed.Group | None


class FusedProjections(GatedDeltaLayer, Protocol):
    """Qwen3-Next's Gated DeltaNet layer: two matrices, columns interleaved by key head."""

    in_proj_qkvz: Linear
    in_proj_ba: Linear

    def fix_query_key_value_ordering(
        self, qkvz: mx.array, ba: mx.array, /
    ) -> tuple[mx.array, mx.array, mx.array, mx.array, mx.array, mx.array]:
        """Return queries, keys, values, gate, write strength and decay, by head."""


class HybridLayer(Protocol[DeltaT]):
    """A decoder layer: `linear_attn` or `self_attn`, then an MLP."""

    is_linear: bool
    linear_attn: DeltaT
    self_attn: Attention
    input_layernorm: Norm
    post_attention_layernorm: Norm
    mlp: Linear


class HybridTrunk(Trunk, Protocol[DeltaT]):
    """A trunk of such layers."""

    layers: Sequence[HybridLayer[DeltaT]]
    fa_idx: int
    pipeline_size: int


class HybridModel(Protocol[DeltaT]):
    """A text model with such a trunk."""

    @property
    def model(self) -> HybridTrunk[DeltaT]: ...


class Qwen35Model(Protocol):
    """Qwen3.5's model class: the language model, without the multimodal wrapper, is in it."""

    language_model: HybridModel[SplitProjections]


class LayerArgs(Protocol):
    """The arguments of a family that shape a decoder layer."""

    hidden_size: int
    intermediate_size: int
    rms_norm_eps: float
    num_experts: int
    full_attention_interval: int
    decoder_sparse_step: int
    mlp_only_layers: list[int]


class HeadTarget(TextModel, Protocol):
    """A text model that a head fits."""

    args: LayerArgs
