"""An adapter that another package names is compared with mlx-lm's own model when it is made."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx_lm.models import cohere, falcon_h1, gemma2, granite, llama4_text, olmo2
from mlx_lm.models.cache import make_prompt_cache
from typing_extensions import override

import speculate as sp
from speculate.errors import UnsupportedModelError
from speculate.models import registry
from speculate.models.adapter import DenseAdapter, StockAdapter
from speculate.models.registry import CHUNKS, check_against_stock
from speculate.protocols import Forward
from tests.support import tiny, tokenizers

SHAPE: dict[str, object] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": tiny.VOCAB,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
}


def made(module: Any, **over: object) -> nn.Module:
    name = module.__name__.rpartition(".")[2]
    args = module.ModelArgs.from_dict({"model_type": name, **SHAPE, **over})
    return tiny.spread(module.Model(args))


def of_granite(scaling: float) -> nn.Module:
    multipliers = ("attention_multiplier", "embedding_multiplier", "residual_multiplier")
    flags = dict.fromkeys(("attention_bias", "mlp_bias"), False)
    numbers = {"logits_scaling": scaling, "max_position_embeddings": 64}
    return made(granite, **dict.fromkeys(multipliers, 1.0), **flags, **numbers)


def of_falcon() -> nn.Module:
    sizes = {"mamba_d_conv": 4, "mamba_d_head": 8, "mamba_d_ssm": 32, "mamba_d_state": 8}
    return made(falcon_h1, mamba_n_heads=4, tie_word_embeddings=True, **sizes)


def of_llama4() -> nn.Module:
    flags = {"tie_word_embeddings": False, "use_qk_norm": True, "no_rope_layers": [1, 0]}
    return made(llama4_text, intermediate_size_mlp=48, **flags)


OTHER: dict[str, Callable[[], nn.Module]] = {
    "gemma2, which caps logits": lambda: made(gemma2),
    "cohere, which scales logits": lambda: made(cohere),
    "granite, which divides logits": lambda: of_granite(8.0),
    "falcon_h1, which scales logits": of_falcon,
    "llama4_text": of_llama4,
}
EQUAL: dict[str, Callable[[], nn.Module]] = {
    "olmo2": lambda: made(olmo2),
    "granite, which divides by 1": lambda: of_granite(1.0),
}


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package names `DenseAdapter` for every family that the table lacks."""

    def entry_points(*, group: str, name: str = "any") -> list[EntryPoint]:
        return [EntryPoint(name, "speculate.models.adapter:DenseAdapter", group)]

    monkeypatch.setattr(registry, "entry_points", entry_points)


@pytest.mark.parametrize("build", OTHER.values(), ids=OTHER)
def test_other_logits_than_mlx_lms_are_refused(named: None, build: Callable[[], Any]) -> None:
    stock = build()
    with pytest.raises(UnsupportedModelError) as caught:
        sp.adapt(stock)
    said = str(caught.value)
    for part in (
        "speculate.models.adapter:DenseAdapter gives other logits",
        type(stock).__module__,
    ):
        assert part in said
    assert f"of {sum(CHUNKS) * tiny.VOCAB} logits differ, by " in said
    assert "Model.__call__" in said and "'Writing an adapter'" in said


@pytest.mark.parametrize("build", EQUAL.values(), ids=EQUAL)
def test_equal_logits_are_taken_and_nothing_is_left_in_memory(
    named: None, build: Callable[[], Any]
) -> None:
    stock = build()
    gc.collect()  # What other tests have left is not to be freed in between.
    before = mx.get_active_memory()
    model = sp.adapt(stock)
    assert mx.get_active_memory() <= before
    assert isinstance(model, DenseAdapter)


def test_a_folder_is_refused_likewise(named: None, tmp_path: Path) -> None:
    tokenizers.write_folder(tmp_path, made(gemma2), {"model_type": "gemma2", **SHAPE})
    with pytest.raises(UnsupportedModelError, match=r"other logits than mlx_lm\.models\.gemma2"):
        sp.load(tmp_path)


class Odd(StockAdapter):
    """An adapter of llama that differs from the stock model in some way."""

    wide = tiny.VOCAB

    @property
    def vocab_size(self) -> int:
        return self.wide

    def logits(self, tokens: mx.array, cache: Sequence[object]) -> mx.array:
        return self._stock(tokens, cache=list(cache))

    @override
    def forward_stock(self, tokens: mx.array, cache: Sequence[object]) -> Forward:
        logits = self.logits(tokens, cache)
        return Forward(logits, logits)


class Forgets(Odd):
    """Feeds caches of its own, so that a first block is right and nothing after it."""

    def logits(self, tokens: mx.array, cache: Sequence[object]) -> mx.array:
        stock: Any = self._stock
        return super().logits(tokens, make_prompt_cache(stock))


class Wider(Odd):
    """Tells more columns than there are."""

    wide = tiny.VOCAB + 1


class Shorter(Odd):
    """Gives fewer columns than there are."""

    def logits(self, tokens: mx.array, cache: Sequence[object]) -> mx.array:
        return super().logits(tokens, cache)[..., :-1]


class Raises(Odd):
    """Reads an attribute that the model does not have."""

    def logits(self, tokens: mx.array, cache: Sequence[object]) -> mx.array:
        stock: Any = self._stock
        found: mx.array = stock.no_such_layer(tokens)
        return found


class NoNumber(Odd):
    """Has one logit that is no number."""

    def logits(self, tokens: mx.array, cache: Sequence[object]) -> mx.array:
        out = super().logits(tokens, cache)
        out[0, -1, 3] = float("nan")
        return out


class Scaled(Odd):
    """Multiplies logits by a number that is close to 1."""

    factor = 1.0

    def logits(self, tokens: mx.array, cache: Sequence[object]) -> mx.array:
        out = super().logits(tokens, cache)
        return (out.astype(mx.float32) * self.factor).astype(out.dtype)


class Rounded(Scaled):
    """Rounds once more than the stock model."""

    factor = 1 + 2.0**-22


class Louder(Scaled):
    """Scales by what no rounding of bfloat16 explains."""

    factor = 1.03


REASONS: dict[type[Odd], str] = {
    Forgets: f"{tiny.VOCAB} of {sum(CHUNKS) * tiny.VOCAB} logits differ, .* after 6 tokens has",
    Wider: "vocab_size is 65, and the logits of mlx_lm.models.llama have 64 columns",
    Shorter: r"float32 \(1, 6, 63\) instead of .*float32 \(1, 6, 64\)",
    Raises: "Raises cannot drive mlx_lm.models.llama: AttributeError: .*no_such_layer",
    NoNumber: "differ, by inf at most: token 3 after 5 tokens has nan instead of",
    Rounded: "logits differ",
}


@pytest.mark.parametrize("adapter", REASONS)
def test_what_differs_is_named(adapter: type[Odd]) -> None:
    stock: Any = tiny.dense()
    check_against_stock(Odd(stock), stock)
    with pytest.raises(UnsupportedModelError, match=REASONS[adapter]):
        check_against_stock(adapter(stock), stock)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16], ids=str)
def test_off_the_cpu_a_difference_may_be_rounding(
    monkeypatch: pytest.MonkeyPatch, dtype: mx.Dtype
) -> None:
    stock: Any = tiny.dense()
    stock.set_dtype(dtype)
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu, 0))
    check_against_stock(Rounded(stock), stock)
    with pytest.raises(UnsupportedModelError, match="Louder gives other logits"):
        check_against_stock(Louder(stock), stock)


def test_the_packages_own_adapters_are_not_compared_and_others_of_that_name_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[object] = []
    monkeypatch.setattr(
        "speculate.models.registry.check_against_stock",
        lambda adapter, stock: compared.append(stock),
    )
    stock: Any = tiny.dense()
    sp.adapt(stock)
    assert not compared
    # Called as the table's, and not of mlx-lm: it was never compared with that adapter.
    other: Any = type("Model", (type(stock),), {"__module__": "somewhere.else.llama"})
    object.__setattr__(stock, "__class__", other)
    sp.adapt(stock)
    assert compared == [stock]
