"""The modules of a head: its own weights, in mlx-lm's own layers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Literal, cast, final, get_args

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.normalization import RMSNorm
from mlx.nn.layers.quantized import quantize
from mlx.utils import tree_flatten
from mlx_lm.models import qwen3_5, qwen3_next
from mlx_lm.models.base import create_attention_mask, gather_last_axis
from typing_extensions import Protocol

from speculate.backends.group import group_of, join
from speculate.backends.kv import RewindableKVCache
from speculate.errors import HeadMismatchError, OptionError, UnsupportedModelError
from speculate.models.fingerprint import fingerprint
from speculate.models.output import Embedding, project
from speculate.protocols import Forward, MTPHead, Rollbackable, StockModel
from speculate.validation import validated_choice


class DecoderLayer(Protocol):
    """A stock decoder layer with full attention."""

    def __call__(self, x: mx.array, /, mask: mx.array | str | None, cache: object) -> mx.array: ...


class HeadModule(Protocol):
    """A head's own modules."""

    @property
    def layers(self) -> Sequence[object]:
        """Its decoder layers."""

    def __call__(
        self, embedded: mx.array, hidden: mx.array, cache: Sequence[object], /
    ) -> tuple[mx.array, mx.array]:
        """See `MTPModule`."""


@final
class MTPModule(Module):
    """`fc` over two normed inputs, decoder layers, a final norm.

    Its parameters are called as on disk, without the prefix.

    Args:
        width: Of the trunk.
        eps: Of all norms.
        layers: Stock decoder layers.
    """

    def __init__(self, width: int, eps: float, layers: Sequence[DecoderLayer]) -> None:
        Module.__init__(self)
        self.pre_fc_norm_embedding = RMSNorm(width, eps=eps)
        self.pre_fc_norm_hidden = RMSNorm(width, eps=eps)
        self.fc = Linear(2 * width, width, bias=False)
        self.layers = list(layers)
        self.norm = RMSNorm(width, eps=eps)

    def __call__(
        self, embedded: mx.array, hidden: mx.array, cache: Sequence[object]
    ) -> tuple[mx.array, mx.array]:
        """One pass over `T` rows.

        Args:
            embedded: `(1, T, width)`, the tokens.
            hidden: `(1, T, width)`, of the tokens one place before.
            cache: One entry a layer; advanced by `T` rows.

        Returns:
            The last layer's output before and after the final norm, `(1, T, width)` each.
        """
        pair = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)]
        x: mx.array = self.fc(mx.concatenate(pair, axis=-1))
        mask: mx.array | str | None = create_attention_mask(x, cache[0])
        for layer, layer_cache in zip(self.layers, cache, strict=True):
            x = layer(x, mask=mask, cache=layer_cache)
        return x, cast(mx.array, self.norm(x))


class LayerArgs(Protocol):
    """A family's arguments, as far as they shape a decoder layer."""

    hidden_size: int
    intermediate_size: int
    rms_norm_eps: float
    num_experts: int
    full_attention_interval: int
    decoder_sparse_step: int
    mlp_only_layers: list[int]


class Norm(Protocol):
    """A stock norm."""

    weight: mx.array


class Body(Protocol):
    """The stock module under the output matrix."""

    embed_tokens: Embedding
    norm: Norm


class Text(Protocol):
    """The stock module that holds the output matrix, if there is one of its own."""

    args: LayerArgs
    model: Body


class ShardedText(Protocol):
    """One whose output matrix may be split over processes."""

    sharding_group: mx.distributed.Group | None


MakeLayer = Callable[[LayerArgs, int], DecoderLayer]
"""A stock layer class: arguments, and the layer's index, which decides its attention."""


@final
class Trunk:
    """A stock model of a family that has heads. Holds no array of its own.

    Everything is looked up when it is used: whatever matrix the target multiplies with at
    that moment, tied or not, in whatever packing, the head does too.

    Raises:
        UnsupportedModelError: No head is known for this family.
    """

    def __init__(self, stock: StockModel) -> None:
        known: object = stock.language_model if isinstance(stock, qwen3_5.Model) else stock
        self._sharded: ShardedText | None = None
        if isinstance(known, qwen3_5.TextModel):
            self._make_layer = cast(MakeLayer, qwen3_5.DecoderLayer)
            self._sharded = cast(ShardedText, known)
        elif isinstance(known, qwen3_next.Model):
            self._make_layer = cast(MakeLayer, qwen3_next.Qwen3NextDecoderLayer)
        else:
            raise UnsupportedModelError(
                f"no multi-token-prediction head is known for {type(stock).__module__}; there "
                "are heads for qwen3_5, qwen3_5_moe and qwen3_next"
            )
        self._text = cast(Text, known)

    @property
    def args(self) -> LayerArgs:
        """The family's arguments."""
        return self._text.args

    def embed(self, tokens: mx.array) -> mx.array:
        """Embeddings `(1, T, width)` of tokens `(1, T)`."""
        return self._text.model.embed_tokens(tokens)

    def project(self, hidden: mx.array) -> mx.array:
        """Logits `(1, T, vocabulary)` of post-norm hidden states `(1, T, width)`."""
        logits = project(self._text, self._text.model.embed_tokens, hidden)
        group = self._sharded.sharding_group if self._sharded else None
        if group is None or "lm_head" not in cast(dict[str, object], self._text):
            return logits
        # Each process holds some rows of the matrix.
        return gather_last_axis(logits, group)

    def dtype(self) -> mx.Dtype:
        """What hidden states come in."""
        return self._text.model.norm.weight.dtype

    def layer(self, experts: bool, intermediate: int | None) -> DecoderLayer:
        """A decoder layer as the trunk's, with full attention and no weights worth anything.

        Args:
            experts: Whether its MLP is a mixture of experts.
            intermediate: Width of a dense MLP, where the trunk has none to go by.
        """
        args = copy.copy(self.args)
        args.full_attention_interval = 1
        args.decoder_sparse_step, args.mlp_only_layers = 1, []
        if not experts:
            args.num_experts = 0
            if self.args.num_experts and intermediate:
                args.intermediate_size = intermediate
        return self._make_layer(args, 0)


Feed = Literal["post_norm", "pre_norm"]
"""What a chain hands on to its next step: the head's output after its final norm, or before."""

FEEDS: Final[tuple[str, ...]] = get_args(Feed)


def build_head(stock: StockModel, tensors: HeadWeights, *, feed: Feed = "post_norm") -> MTPHead:
    """Make a head that drafts for a model of mlx-lm. Leaves the model as it is. Synchronises.

    Args:
        stock: The trunk, as mlx-lm made it.
        tensors: The head's, from `speculate.checkpoints.read_head`.
        feed: What `step` returns as `hidden`. Published heads are trained on the default.

    Raises:
        UnsupportedModelError: No head is known for the model's family.
        HeadMismatchError: The tensors do not fit the model. Names the tensor, its shape
            and the shape that was expected.
        OptionError: `feed` is not one of those there are.
    """
    trunk = Trunk(stock)
    return QwenMTPHead(trunk, build_module(trunk, tensors), feed)


@final
class QwenMTPHead:
    """Guesses with one decoder layer (or a few) on top of the trunk's last hidden state.

    Embeds and projects with the trunk's own modules, so that its logits come from exactly
    the matrix that the target uses.

    Args:
        trunk: The model that it drafts for.
        module: Its own weights.
        feed: See `build_head`.
    """

    def __init__(self, trunk: Trunk, module: HeadModule, feed: Feed = "post_norm") -> None:
        validated_choice("feed", feed, FEEDS)
        self._trunk = trunk
        self._module = module
        self._feed = feed

    @property
    def fingerprint(self) -> str:
        """See `Fingerprinted`."""
        return fingerprint(self._module)

    def make_cache(self, position: int = 0) -> list[Rollbackable]:
        layers: list[Rollbackable] = [RewindableKVCache(position) for _ in self._module.layers]
        return join(layers)

    def step(self, hidden: mx.array, tokens: mx.array, cache: list[Rollbackable], /) -> Forward:
        """One pass; see `MTPHead.step`. If it raises, `cache` is as before.

        Raises:
            OptionError: The arrays are not one row of `hidden` for each token.
        """
        if tokens.ndim != 2 or hidden.shape[:-1] != tokens.shape or tokens.shape[0] != 1:
            raise OptionError(
                f"step takes hidden (1, T, width) and tokens (1, T), got {hidden.shape} and "
                f"{tokens.shape}"
            )
        before = [layer.length() for layer in cache]
        group = group_of(cache)
        try:
            if group is None:
                return self._pass(hidden, tokens, cache)
            with group.block(tokens) as fed:
                return self._pass(hidden, fed, cache)
        except BaseException:
            _take_back(cache, before)
            raise

    def _pass(self, hidden: mx.array, tokens: mx.array, cache: Sequence[object]) -> Forward:
        raw, normed = self._module(self._trunk.embed(tokens), hidden, cache)
        logits = self._trunk.project(normed)
        return Forward(logits, normed if self._feed == "post_norm" else raw)


def _take_back(cache: Sequence[Rollbackable], before: Sequence[int]) -> None:
    for layer, length in zip(cache, before, strict=True):
        if layer.length() > length:
            layer.trim(layer.length() - length)


PACKED_PARTS = ("scales", "biases", "global_scale")


class Packing(Protocol):
    """How a matrix is quantised, in mlx's terms."""

    @property
    def bits(self) -> int: ...
    @property
    def group_size(self) -> int: ...
    @property
    def mode(self) -> str: ...
    @property
    def global_scale(self) -> bool: ...


class HeadWeights(Protocol):
    """A head's tensors, by name without prefix: norms hold gains, experts are stacked."""

    @property
    def weights(self) -> Mapping[str, mx.array]: ...
    @property
    def quantization(self) -> Mapping[str, Packing]: ...


def build_module(trunk: Trunk, head: HeadWeights) -> HeadModule:
    """Make a head's modules.

    Raises:
        HeadMismatchError: A tensor does not fit the trunk, is missing, or has no place.
            Names it, its shape and the shape that was expected.
    """
    with _keeping_random_state():
        module = _blank(trunk, head.weights)
        check_shapes(dict(_parameters(module)), head)
        _pack(module, head.quantization)
    _fill(module, _in_dtype(head.weights, trunk.dtype()))
    return module


def check_shapes(blank: Mapping[str, mx.array], head: HeadWeights) -> None:
    """Compare a head's tensors with the parameters of a blank one, unquantised.

    Raises:
        HeadMismatchError: See `build_module`.
    """
    expected = {name: _expected(name, like, head) for name, like in blank.items()}
    for name in head.weights:
        module, _, part = name.rpartition(".")
        if part in PACKED_PARTS and module in head.quantization:
            continue
        if name not in expected:
            raise HeadMismatchError(f"mtp.{name}: the model's layers have no such tensor")
    for name, shape in expected.items():
        found = head.weights.get(name)
        if found is None:
            raise HeadMismatchError(f"mtp.{name}: is missing, expected shape {shape}")
        if found.shape != shape:
            raise HeadMismatchError(f"mtp.{name}: has shape {found.shape}, the model needs {shape}")


def _expected(name: str, like: mx.array, head: HeadWeights) -> tuple[int, ...]:
    module, _, part = name.rpartition(".")
    packing = head.quantization.get(module)
    if packing is None or part != "weight":
        return like.shape
    return (*like.shape[:-1], like.shape[-1] * packing.bits // 32)


def _blank(trunk: Trunk, weights: Mapping[str, mx.array]) -> MTPModule:
    indices = {int(name.split(".")[1]) for name in weights if name.startswith("layers.")}
    layers = []
    for index in range(len(indices)):
        mlp = f"layers.{index}.mlp"
        dense = weights.get(f"{mlp}.gate_proj.weight")
        experts = any(name.startswith(f"{mlp}.switch_mlp.") for name in weights)
        layers.append(trunk.layer(experts, None if dense is None else dense.shape[0]))
    return MTPModule(trunk.args.hidden_size, trunk.args.rms_norm_eps, layers)


def _pack(module: MTPModule, quantization: Mapping[str, Packing]) -> None:
    """Swap in quantised modules. What they hold is never computed."""

    def choice(path: str, _: Module) -> dict[str, object] | bool:
        packing = quantization.get(path)
        if packing is None:
            return False
        chosen = {"group_size": packing.group_size, "bits": packing.bits, "mode": packing.mode}
        return {**chosen, "global_scale": True} if packing.global_scale else chosen

    quantize(module, class_predicate=choice)


def _fill(module: Module, weights: Mapping[str, mx.array]) -> None:
    module.load_weights(list(weights.items()))
    module.eval()
    mx.eval(module.parameters())


def _in_dtype(weights: Mapping[str, mx.array], dtype: mx.Dtype) -> dict[str, mx.array]:
    """The trunk's numbers throughout: one float32 norm would make all that follows float32."""

    def convert(name: str, array: mx.array) -> mx.array:
        keep = name.endswith(".global_scale") or not mx.issubdtype(array.dtype, mx.floating)
        return array if keep else array.astype(dtype)

    return {name: convert(name, array) for name, array in weights.items()}


def _parameters(module: Module) -> list[tuple[str, mx.array]]:
    return cast(list[tuple[str, mx.array]], tree_flatten(module.parameters()))


@contextmanager
def _keeping_random_state() -> Iterator[None]:
    """Stock layers draw their first weights, and a program's own draws must not change."""
    before = mx.array(_random_state())
    try:
        yield
    finally:
        _random_state()[:] = before


def _random_state() -> mx.array:
    """The key of this thread's generator, which draws replace and a write changes."""
    return cast(Sequence[mx.array], mx.random.state)[0]
