"""Multi-token-prediction heads: their modules, their fit to a trunk, and the head that drafts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, cast, final, get_args

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.normalization import RMSNorm
from mlx.nn.layers.quantized import quantize
from mlx.utils import tree_flatten
from mlx_lm.models import qwen3_5, qwen3_next
from mlx_lm.models.base import create_attention_mask
from typing_extensions import Protocol

from speculate._mx import fingerprint
from speculate.backends.group import CacheGroup, group_of, join
from speculate.backends.kv import RewindableKVCache
from speculate.errors import HeadMismatchError, OptionError, UnsupportedModelError
from speculate.models.adapter import project
from speculate.models.stock import Attention, HeadTarget, LayerArgs
from speculate.protocols import Forward, MTPHead, Rollbackable, StockModel
from speculate.validation import validated_choice

Feed = Literal["post_norm", "pre_norm"]
"""What a chain feeds to its next step: the head's output after its final norm, or before it."""

FEEDS: Final[tuple[str, ...]] = get_args(Feed)

MakeLayer = Callable[[LayerArgs, int], Attention]
"""A stock layer class: arguments, and the layer's index, which decides its kind of attention."""


class HeadModule(Protocol):
    """The modules that are a head's own."""

    @property
    def layers(self) -> Sequence[object]: ...
    def __call__(
        self, embedded: mx.array, hidden: mx.array, cache: Sequence[object], /
    ) -> tuple[mx.array, mx.array]:
        """Return the last layer's output before and after the final norm, `(1, T, width)` each.

        `hidden` `(1, T, width)` is that of the tokens one position before those of `embedded`.
        """


@final
class _MTPModule(Module):
    """A head: `fc` over two normed inputs, stock decoder layers, a final norm.

    Its parameters have the names on disk, without the prefix.
    """

    def __init__(self, width: int, eps: float, layers: Sequence[Attention]) -> None:
        Module.__init__(self)
        self.pre_fc_norm_embedding = RMSNorm(width, eps=eps)
        self.pre_fc_norm_hidden = RMSNorm(width, eps=eps)
        self.fc = Linear(2 * width, width, bias=False)
        self.layers = list(layers)
        self.norm = RMSNorm(width, eps=eps)

    def __call__(
        self, embedded: mx.array, hidden: mx.array, cache: Sequence[object]
    ) -> tuple[mx.array, mx.array]:
        pair = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)]
        x: mx.array = self.fc(mx.concatenate(pair, axis=-1))
        mask: mx.array | str | None = create_attention_mask(x, cache[0])
        for layer, layer_cache in zip(self.layers, cache, strict=True):
            x = layer(x, mask, layer_cache)
        return x, cast(mx.array, self.norm(x))


@final
class TrunkBinding:
    """What a head shares with a stock model, `text`. Holds no array of its own.

    Modules are looked up at every use, so the head always embeds and projects with the target's
    present matrices, tied or not, however they are quantised.
    """

    def __init__(self, stock: StockModel) -> None:
        known: object = stock.language_model if isinstance(stock, qwen3_5.Model) else stock
        if isinstance(known, qwen3_5.TextModel):
            self._make_layer = cast(MakeLayer, qwen3_5.DecoderLayer)
        elif isinstance(known, qwen3_next.Model):
            self._make_layer = cast(MakeLayer, qwen3_next.Qwen3NextDecoderLayer)
        else:
            raise UnsupportedModelError(
                f"no multi-token-prediction head is known for {type(stock).__module__}; there "
                "are heads for qwen3_5, qwen3_5_moe and qwen3_next"
            )
        self.text: HeadTarget = cast(HeadTarget, known)

    def layer(self, experts: bool, intermediate: int | None) -> Attention:
        """Make a decoder layer like the trunk's, with full attention and placeholder weights.

        `intermediate` is the width of a dense MLP; read only if the trunk itself has experts.
        """
        args = copy.copy(self.text.args)
        args.full_attention_interval = 1
        args.decoder_sparse_step, args.mlp_only_layers = 1, []
        if not experts:
            args.num_experts = 0
            if self.text.args.num_experts and intermediate:
                args.intermediate_size = intermediate
        return self._make_layer(args, 0)


def build_head(stock: StockModel, tensors: HeadWeights, *, feed: Feed = "post_norm") -> MTPHead:
    """Make a head that drafts for a model of mlx-lm. The model is unchanged. Synchronises.

    Args:
        stock: The target, as mlx-lm made it.
        tensors: The head's tensors, from `speculate.checkpoints.read_head`.
        feed: What `step` returns as `hidden`. Published heads are trained on the default.

    Raises:
        UnsupportedModelError: No head is known for the model's family.
        HeadMismatchError: A tensor does not fit the model, is missing, or is unknown. Names it,
            its shape and the shape that was expected.
        OptionError: `feed` is not one of `FEEDS`.
    """
    trunk = TrunkBinding(stock)
    random_state = cast(Sequence[mx.array], mx.random.state)
    before = mx.array(random_state[0])
    try:
        module = _blank(trunk, tensors.weights)
        _check_shapes(module, tensors)
        _quantize(module, tensors.quantization)
    finally:
        # Stock layers draw initial weights, and must not change later draws.
        random_state[0][:] = before
    _fill(module, tensors.weights, trunk.text.model.norm.weight.dtype)
    return QwenMTPHead(trunk, module, feed)


@final
class QwenMTPHead:
    """Drafts with a decoder layer or a few on the trunk's last hidden state; see `build_head`."""

    def __init__(self, trunk: TrunkBinding, module: HeadModule, feed: Feed = "post_norm") -> None:
        validated_choice("feed", feed, FEEDS)
        self._trunk = trunk
        self._module = module
        self._feed = feed

    @property
    def fingerprint(self) -> str:
        """A hash of the shapes and formats of its weights; see `SupportsFingerprint`."""
        return fingerprint(self._module)

    def make_cache(self, position: int = 0) -> list[Rollbackable]:
        layers: list[Rollbackable] = [RewindableKVCache(position) for _ in self._module.layers]
        return join(layers)

    def step(self, hidden: mx.array, tokens: mx.array, cache: list[Rollbackable], /) -> Forward:
        """Run the head once; see `MTPHead.step`. If it raises, `cache` is unchanged.

        Raises:
            OptionError: The arrays are not one row of `hidden` for each token.
        """
        if tokens.ndim != 2 or hidden.shape[:-1] != tokens.shape or tokens.shape[0] != 1:
            raise OptionError(
                f"step takes hidden (1, T, width) and tokens (1, T), got {hidden.shape} and "
                f"{tokens.shape}"
            )
        text, group = self._trunk.text, group_of(cache) or CacheGroup(cache)
        with group.block(tokens) as fed:
            raw, normed = self._module(text.model.embed_tokens(fed), hidden, cache)
            logits = project(text, normed)
        return Forward(logits, normed if self._feed == "post_norm" else raw)


class Packing(Protocol):
    """How a matrix is quantised, in mlx's terms: `checkpoints.Quantization`, for instance."""

    @property
    def bits(self) -> int: ...
    @property
    def group_size(self) -> int: ...
    @property
    def mode(self) -> str: ...
    @property
    def global_scale(self) -> bool: ...


class HeadWeights(Protocol):
    """A head's tensors by name without prefix. Norms hold gains, experts are stacked."""

    @property
    def weights(self) -> Mapping[str, mx.array]: ...
    @property
    def quantization(self) -> Mapping[str, Packing]: ...


def _blank(trunk: TrunkBinding, weights: Mapping[str, mx.array]) -> _MTPModule:
    indices = {int(name.split(".")[1]) for name in weights if name.startswith("layers.")}
    layers = []
    for index in range(len(indices)):
        mlp = f"layers.{index}.mlp"
        dense = weights.get(f"{mlp}.gate_proj.weight")
        experts = any(name.startswith(f"{mlp}.switch_mlp.") for name in weights)
        layers.append(trunk.layer(experts, None if dense is None else dense.shape[0]))
    return _MTPModule(trunk.text.args.hidden_size, trunk.text.args.rms_norm_eps, layers)


def _check_shapes(blank: Module, head: HeadWeights) -> None:
    """Compare a head's tensors with the parameters of a blank module that is not quantised."""
    expected: dict[str, tuple[int, ...]] = {}
    for name, like in cast(list[tuple[str, mx.array]], tree_flatten(blank.parameters())):
        module, _, part = name.rpartition(".")
        packing = head.quantization.get(module) if part == "weight" else None
        columns = like.shape[-1] if packing is None else like.shape[-1] * packing.bits // 32
        expected[name] = (*like.shape[:-1], columns)
    for name in head.weights:
        module, _, part = name.rpartition(".")
        packed = part in ("scales", "biases", "global_scale") and module in head.quantization
        if name not in expected and not packed:
            raise HeadMismatchError(f"mtp.{name}: the model's layers have no such tensor")
    for name, shape in expected.items():
        found = head.weights.get(name)
        if found is None:
            raise HeadMismatchError(f"mtp.{name}: is missing, expected shape {shape}")
        if found.shape != shape:
            raise HeadMismatchError(f"mtp.{name}: has shape {found.shape}, the model needs {shape}")


def _quantize(module: Module, quantization: Mapping[str, Packing]) -> None:
    """Replace modules by quantised ones. Their placeholder weights are never computed."""

    def choice(path: str, _: Module) -> dict[str, object] | bool:
        packing = quantization.get(path)
        if packing is None:
            return False
        chosen = {"group_size": packing.group_size, "bits": packing.bits, "mode": packing.mode}
        return {**chosen, "global_scale": True} if packing.global_scale else chosen

    quantize(module, class_predicate=choice)


def _fill(module: Module, weights: Mapping[str, mx.array], dtype: mx.Dtype) -> None:
    """Load weights; floats in the trunk's dtype, or one float32 norm would spread float32."""
    loaded = dict(weights)
    for name, weight in weights.items():
        if mx.issubdtype(weight.dtype, mx.floating) and not name.endswith(".global_scale"):
            loaded[name] = weight.astype(dtype)
    module.load_weights(list(loaded.items()))
    module.eval()
    mx.eval(module.parameters())
