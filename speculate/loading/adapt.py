"""From a model in memory to one that can speculate, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from speculate.errors import UnsupportedModelError
from speculate.protocols import MTPHead, Recurrence, SpeculativeModel, StockModel
from speculate.validation import validated_ids, validated_mapping


def adapt(
    stock_model: StockModel | SpeculativeModel,
    *,
    head: MTPHead | None = None,
    eos_token_ids: Iterable[int] = (),
    vocabulary: Mapping[str, int] | None = None,
    recurrence: Recurrence | None = None,
) -> SpeculativeModel:
    """Wrap a model of mlx-lm, which stays as it is.

    Args:
        stock_model: The model. One that is adapted already is adapted anew, and what is
            not given here stays as it was.
        head: A multi-token-prediction head, from `load_mtp_head`.
        eos_token_ids: Ids that end a text: a tokenizer's `eos_token_ids`.
        vocabulary: Token strings and their ids, a tokenizer's `get_vocab()`, to compare
            with a draft model's.
        recurrence: How Gated DeltaNet layers run a block and are taken back, `"ops"` or
            `"kernel"`; `None` for what costs least on the default device.

    Raises:
        UnsupportedModelError: No adapter is registered for this architecture, or the one that
            another package brings gives other logits than the model: it is compared with it
            over a few tokens, for which the weights are read.
        OptionError: An option cannot be used.
    """
    from speculate.models.adapter import StockAdapter
    from speculate.models.registry import adapter_for, is_built_in
    from speculate.models.stock_check import check_against_stock

    stop = frozenset(validated_ids("eos_token_ids", eos_token_ids))
    validated_mapping("vocabulary", vocabulary)
    if isinstance(stock_model, StockAdapter):
        known = stock_model
        head = known.head if head is None else head
        stop = stop or known.eos_token_ids
        vocabulary = known.vocabulary if vocabulary is None else vocabulary
        recurrence = known.recurrence if recurrence is None else recurrence
    stock = stock_of(stock_model)
    factory = adapter_for(stock)
    if recurrence is None:
        # Factories of other packages need not know the keyword.
        adapter = factory(stock, head=head, eos_token_ids=stop, vocabulary=vocabulary)
    else:
        adapter = factory(
            stock, head=head, eos_token_ids=stop, vocabulary=vocabulary, recurrence=recurrence
        )
    if not is_built_in(factory, type(stock)):
        check_against_stock(adapter, stock)
    return adapter


def stock_of(model: SpeculativeModel | StockModel) -> StockModel:
    """The model of mlx-lm under an adapter, or `model` itself where it is one.

    Raises:
        UnsupportedModelError: It is neither.
    """
    from mlx.nn import Module

    from speculate.models.adapter import StockAdapter

    if isinstance(model, StockAdapter):
        return model.stock
    if isinstance(model, Module):
        return cast(StockModel, model)
    raise UnsupportedModelError(
        f"{type(model).__qualname__} is no model of mlx-lm, and no adapter that tells which "
        "one it drives"
    )
