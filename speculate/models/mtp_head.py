"""The multi-token-prediction head of Qwen3.5 and Qwen3-Next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, final, get_args

import mlx.core as mx

from speculate.backends.joining import group_of, join
from speculate.backends.kv import RewindableKVCache
from speculate.errors import OptionError
from speculate.models._mtp_module import HeadModule
from speculate.models.fingerprint import fingerprint
from speculate.models.mtp_build import HeadWeights, build_module
from speculate.models.mtp_trunk import Trunk
from speculate.protocols import Forward, MTPHead, Rollbackable, StockModel
from speculate.validation import validated_choice

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
