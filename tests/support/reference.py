"""Texts that are known to be right, and what must hold of a run and of the caches it leaves."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from typing import Final, TypeVar, cast

import attrs
import mlx.core as mx
import pytest
from mlx import nn
from mlx.utils import tree_map
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import (
    ArraysCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    make_prompt_cache,
)

from speculate import Decoder, SpeculativeModel, Token
from speculate.backends.rotating import RewindableRotatingKVCache
from speculate.models.registry import adapter_for
from speculate.protocols import MTPHead, Recurrence, StockModel, Strategy
from speculate.testing import ScriptedProposer
from tests.support import tiny

PROMPT: Final = (5, 9, 12, 3, 7, 1)
SECOND: Final = (33, 2, 18)
THIRD: Final = (44, 6)
PROMISED: Final = (*tiny.FAMILIES, "qwen3_5_folded")
LONG: Final = 24
"""Tokens that `plain` decodes once, for every test that needs the first of them."""

STOCK_TYPES: Final = (KVCache, QuantizedKVCache, RotatingKVCache, ArraysCache)
CaseT = TypeVar("CaseT")
Wrong = Callable[[int], int | None]


@attrs.frozen(eq=False)
class Tiny:
    """A model of mlx-lm, and what drives it."""

    stock: StockModel
    model: SpeculativeModel

    @property
    def module(self) -> nn.Module:
        return cast(nn.Module, self.stock)


def adapted(
    module: nn.Module,
    head: MTPHead | None = None,
    eos: Iterable[int] = (),
    vocabulary: dict[str, int] | None = None,
    recurrence: Recurrence | None = None,
) -> Tiny:
    """Any stock model, with its adapter."""
    stock = cast(StockModel, module)
    factory = adapter_for(stock)
    model = factory(
        stock, head=head, eos_token_ids=eos, vocabulary=vocabulary, recurrence=recurrence
    )
    return Tiny(stock, model)


BUILDERS: Final[dict[str, Callable[[], nn.Module]]] = {
    **tiny.FAMILIES,
    **tiny.MORE,
    **tiny.FOLDED,
    "windowed_deep": lambda: tiny.windowed(window=64),
    "wide_heads": lambda: tiny.dense(hidden_size=128),
    "shallow": lambda: tiny.hybrid(num_hidden_layers=2),
    "small_dense": lambda: tiny.dense(seed=3, num_hidden_layers=1),
}


@cache
def get(name: str) -> Tiny:
    """A model by name; the same one for every test, since nothing changes it."""
    return adapted(BUILDERS[name](), recurrence=tiny.recurrence(name))


def text_of(length: int, seed: int = 0) -> tuple[int, ...]:
    """A prompt of so many ids."""
    return tuple(random.Random(f"{length} {seed}").randrange(tiny.VOCAB) for _ in range(length))


# What is right.


@lru_cache(maxsize=256)
def plain(name: str, prompt: tuple[int, ...], count: int = LONG) -> tuple[int, ...]:
    """What mlx-lm's own loop generates."""
    steps = generate_step(mx.array(list(prompt)), get(name).module, max_tokens=count)
    return tuple(int(token) for token, _ in steps)


@lru_cache(maxsize=64)
def cold(name: str, text: tuple[int, ...]) -> tuple[mx.array, list[object]]:
    """Logits `(T, vocabulary)` and caches of the stock model after one pass over a text."""
    caches = stock_caches(name)
    logits = get(name).stock(mx.array([text]), cache=caches)[0]
    mx.eval(logits)
    return logits, caches


def stock_caches(name: str) -> list[object]:
    """Fresh caches of mlx-lm."""
    return cast("list[object]", make_prompt_cache(get(name).module))


def truth(name: str, prompt: Sequence[int], count: int) -> list[int]:
    """The first `count` tokens after a prompt, by mlx-lm's own loop."""
    long = plain(name, tuple(prompt), max(count, LONG))
    return list(long[:count])


# What must hold.


def ids_of(tokens: Iterable[Token]) -> list[int]:
    return [token.id for token in tokens]


def logprobs(logits: mx.array) -> mx.array:
    logits = logits.astype(mx.float32)
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def check_tokens(
    name: str, prompt: Sequence[int], tokens: Sequence[Token], *, within: float = 0.0
) -> None:
    """Tokens are plain decoding's, and every one is scored as a cold prefill scores it.

    Args:
        name: The model.
        prompt: All of the text before the tokens.
        tokens: What a decoder emitted.
        within: How far apart the scores may be, in units of the largest. Not 0 only where
            mlx-lm's own single steps wrote to a window that has wrapped.
    """
    ids = ids_of(tokens)
    assert ids == truth(name, prompt, len(ids))
    if tokens:
        want = logprobs(cold(name, (*prompt, *ids))[0])[len(prompt) - 1 : -1]
        found = mx.stack([token.logprobs for token in tokens])
        apart = mx.abs(found - want).max(axis=-1) / mx.abs(want).max()
        assert [row for row, d in enumerate(to_floats(apart)) if d > within] == []


def to_floats(row: mx.array) -> list[float]:
    return cast("list[float]", row.tolist())


def check_holds(name: str, caches: Sequence[object], text: Sequence[int]) -> None:
    """Caches are mlx-lm's, and hold a text as a cold prefill of it does, bit for bit."""
    fresh = cold(name, tuple(text))[1] if text else stock_caches(name)
    same_content(caches, fresh)


def same_content(caches: Sequence[object], others: Sequence[object]) -> None:
    """Two lists of mlx-lm's caches are of the same types and hold the same, bit for bit."""
    assert [type(c) for c in caches] == [type(c) for c in others]
    for layer, (found, wanted) in enumerate(zip(caches, others, strict=True)):
        assert type(found) in STOCK_TYPES
        assert offset(found) == offset(wanted), f"layer {layer}"
        assert equal(content(found), content(wanted)), f"layer {layer}"


def equal(some: Sequence[mx.array], others: Sequence[mx.array]) -> bool:
    pairs = list(zip(some, others, strict=True)) if len(some) == len(others) else []
    return len(pairs) == len(others) and all(mx.array_equal(a, b).item() for a, b in pairs)


def offset(stock: object) -> int | None:
    """Tokens in a cache of mlx-lm; `None` where it cannot tell."""
    return None if isinstance(stock, ArraysCache) else cast(int, getattr(stock, "offset"))  # noqa: B009


def content(cache: object) -> list[mx.array]:
    """Everything in a cache, mlx-lm's or ours, that counts: rows in time order, states."""
    if isinstance(cache, ArraysCache):
        return present(cache.cache)
    if isinstance(cache, QuantizedKVCache):
        packed = cast("list[tuple[mx.array, ...] | None]", [cache.keys, cache.values])
        parts = [part for three in packed if three is not None for part in three]
        return [part[..., : cache.offset, :] for part in parts if cache.offset]
    if isinstance(cache, RewindableRotatingKVCache):
        return [*(cache.window(min(cache.rows(), cache.max_size)) or ())] if cache.offset else []
    if isinstance(cache, RotatingKVCache):
        rows = [cache._temporal_order(part) for part in present([cache.keys, cache.values])]
        return [part[..., -cache.max_size :, :] for part in rows if cache.offset]
    assert isinstance(cache, KVCache)
    rows = present([cache.keys, cache.values])
    return [part[..., : cache.offset, :] for part in rows if cache.offset]


def present(arrays: Sequence[object]) -> list[mx.array]:
    return [array for array in arrays if isinstance(array, mx.array)]


# How to run.


def decode(
    name: str,
    strategy: Strategy,
    prompt: Sequence[int] = PROMPT,
    count: int = 20,
    caches: list[object] | None = None,
    stop: Sequence[int] = (),
) -> list[Token]:
    """One text by a fresh decoder."""
    decoder = Decoder(get(name).model, strategy)
    return list(decoder.generate(prompt, count, caches, stop))


def sampled(cases: Iterable[CaseT], count: int, seed: int = 0) -> list[object]:
    """Parameters of a test: some cases always, the others in the long runs only."""
    every = list(cases)
    assert every, "no cases: an iterator that was used before?"
    now = set(random.Random(seed).sample(range(len(every)), min(count, len(every))))
    return [
        pytest.param(case, id=_id(case), marks=() if i in now else pytest.mark.soak)
        for i, case in enumerate(every)
    ]


def _id(case: object) -> str:
    parts = case if isinstance(case, tuple) else (case,)
    return "-".join("+".join(map(str, p)) if isinstance(p, tuple) else str(p) for p in parts)


def scripted(name: str, prompt: Sequence[int], count: int, wrong: Wrong) -> ScriptedProposer:
    """A proposer that knows the text; `wrong(n)` is where draft `n` is wrong."""
    text = [*prompt, *truth(name, prompt, count)]
    return ScriptedProposer(text, wrong, vocab_size=tiny.VOCAB)


def always(index: object) -> Wrong:
    """Wrong at one index; at each in turn; or never, if it is `None`."""
    if index == "each":
        return lambda n: n % 5
    return lambda _: index if isinstance(index, int) else None


_DISTINCT: Final = {"qwen3_5": 6, "qwen3_5_folded": 6, "gpt_oss": 8, "dense": 37}
"""Seeds to begin with, so that the search is short."""


@cache
def distinct(name: str, count: int) -> tuple[int, ...]:
    """A prompt after which a model's first `count` tokens differ from each other."""
    for seed in range(_DISTINCT.get(name, 0), 100):
        prompt = text_of(6, seed)
        if len(set(truth(name, prompt, count))) == count:
            return prompt
    raise AssertionError(f"no such prompt for {name}")


def feed(name: str, caches: list[object], tokens: Sequence[int]) -> mx.array:
    """Logits `(T, vocabulary)` of the stock model."""
    logits = get(name).stock(mx.array([tokens]), cache=caches)[0]
    mx.eval(logits)
    return logits


def stock_turn(name: str, caches: list[object], prompt: Sequence[int], count: int) -> list[int]:
    """A turn by mlx-lm's own loop."""
    module = get(name).module
    steps = generate_step(mx.array(list(prompt)), module, max_tokens=count, prompt_cache=caches)
    return [int(token) for token, _ in steps]


def stock_ids(module: nn.Module, prompt: Sequence[int], count: int) -> list[int]:
    """What mlx-lm's own loop generates with any model."""
    return [
        int(token) for token, _ in generate_step(mx.array(list(prompt)), module, max_tokens=count)
    ]


def stock_scores(name: str, prompt: Sequence[int], count: int) -> list[mx.array]:
    """What mlx-lm's own loop says of each of its tokens."""
    steps = generate_step(mx.array(list(prompt)), get(name).module, max_tokens=count)
    return [scores for _, scores in steps]


def zeros(module: nn.Module) -> object:
    """Parameters of Qwen3.5's language model, all of them 0."""
    return tree_map(mx.zeros_like, cast("dict[str, object]", module.parameters())["language_model"])
