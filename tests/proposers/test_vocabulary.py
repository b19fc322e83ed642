"""A draft model must speak the target's language, and be one that can be rewound."""

from __future__ import annotations

import pytest
from mlx_lm.models.cache import ConcatenateKVCache

from speculate import Decoder, DraftModel, Fixed, MTPChain, SpeculateError, SpeculativeModel
from speculate.errors import (
    CannotRewindError,
    HeadNotFoundError,
    OptionError,
    VocabularyMismatchError,
)
from speculate.testing import ScheduledStrategy
from tests.support import reference, tiny


def model(size: int, vocabulary: dict[str, int] | None = None) -> SpeculativeModel:
    stock = tiny.dense(seed=size, vocab_size=size, num_hidden_layers=1)
    return reference.adapted(stock, vocabulary=vocabulary).model


def words(count: int, shift: int = 0) -> dict[str, int]:
    return {f"token {i + shift}": i for i in range(count)}


def fits(target: SpeculativeModel, draft: SpeculativeModel) -> bool:
    try:
        decoder = Decoder(target, Fixed(DraftModel(draft), 2))
    except VocabularyMismatchError:
        return False
    return len(list(decoder.generate([1, 2], 4))) == 4


@pytest.mark.parametrize(("target", "draft"), [(64, 64), (64, 80), (80, 64), (72, 64)])
def test_padding_may_differ(target: int, draft: int) -> None:
    assert fits(model(target), model(draft))


@pytest.mark.parametrize(("target", "draft"), [(64, 128), (128, 64), (64, 48)])
def test_more_than_padding_may_not(target: int, draft: int) -> None:
    assert not fits(model(target), model(draft))


def test_the_same_words_at_the_same_ids_fit() -> None:
    assert fits(model(64, words(60)), model(128, words(60)))
    assert fits(model(64, words(60)), model(64, {**words(60), "<extra>": 60}))


def test_the_same_words_at_other_ids_do_not() -> None:
    with pytest.raises(VocabularyMismatchError, match=r"0 of 60"):
        Decoder(model(64, words(60)), Fixed(DraftModel(model(64, words(60, 1000))), 2))
    swapped = {**words(60), "token 1": 2, "token 2": 1}
    assert not fits(model(64, words(60)), model(64, swapped))


def test_where_one_tokenizer_is_unknown_sizes_decide() -> None:
    assert fits(model(64, words(60)), model(64))
    assert not fits(model(64, words(60)), model(128))


def unrewindable() -> SpeculativeModel:
    """A model with caches that cannot be rewound."""
    stock = reference.BUILDERS["small_dense"]()
    stock.make_cache = lambda: [ConcatenateKVCache()]
    return reference.adapted(stock).model


def test_a_draft_that_cannot_be_rewound_is_refused_when_it_is_named() -> None:
    with pytest.raises(CannotRewindError, match=r"layer 0: .*ConcatenateKVCache"):
        DraftModel(unrewindable())


def test_a_target_that_cannot_be_rewound_is_refused_before_the_first_token() -> None:
    decoder = Decoder(unrewindable(), Fixed(DraftModel(reference.get("dense").model), 2))
    with pytest.raises(CannotRewindError, match="layer 0"):
        decoder.generate([1, 2], 4)


def test_a_chain_without_a_head_is_refused_when_the_decoder_is_made() -> None:
    with pytest.raises(HeadNotFoundError, match="load_mtp_head"):
        Decoder(reference.get("qwen3_5").model, Fixed(MTPChain(), 1))
    with pytest.raises(SpeculateError, match="Decoder"):
        MTPChain().begin(0)


def test_two_proposers_of_one_name_are_refused() -> None:
    draft = reference.get("small_dense").model
    pair = ScheduledStrategy([(DraftModel(draft), 1), (DraftModel(draft), 2)])
    with pytest.raises(OptionError, match="draft"):
        Decoder(reference.get("dense").model, pair)
