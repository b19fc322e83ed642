"""The example of a loop gives the text of plain decoding."""

from __future__ import annotations

from itertools import islice

import pytest

import speculate as sp
from examples.own_loop import decode
from speculate import SpeculativeModel
from speculate.testing import ToyModel
from tests.support.cache_contents import model


@pytest.mark.parametrize(
    ("target", "draft"),
    [
        (ToyModel(), ToyModel(1)),
        (ToyModel(), ToyModel()),
        (model("qwen3_5"), model("gpt_oss")),
        (model("gpt_oss"), model("lfm2")),
    ],
    ids=["toy", "itself", "hybrid", "window"],
)
def test_the_text_is_that_of_plain_decoding(
    target: SpeculativeModel, draft: SpeculativeModel
) -> None:
    prompt = [5, 9, 12, 3, 7, 1]
    plain = [token.id for token in sp.Decoder(target, sp.Off()).generate(prompt, 40)]
    assert list(islice(decode(target, draft, prompt), 40)) == plain
