"""Ids that a draft model lacks are never looked up in it, and the text stays the target's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final, final

import mlx.core as mx
import numpy as np
import pytest
from typing_extensions import override

from speculate import Decoder, DraftModel, Fixed, Off, Sampling, SpeculativeModel
from speculate._mx import to_ints
from speculate.protocols import Commit, DraftToken, Forward
from speculate.sampling.options import MODES, Mode
from speculate.verify import model_drafter
from tests.sampling.test_callables import START, TARGET, p_of_steps
from tests.support import reference
from tests.support.exact_distributions import distribution
from tests.support.recording import PassingModel, WatchedProposer
from tests.support.table_models import TableModel, table, to_mx

FEW: Final = 64
MANY: Final = 80
LOGITS: Final = table(1, MANY, spread=2.0)


class Strict(PassingModel):
    """A model that raises where MLX would read past the end of its embedding."""

    @override
    def forward(
        self, tokens: mx.array, cache: Sequence[object], /, *, taps: Sequence[int] = ()
    ) -> Forward:
        ids = to_ints(tokens[0])
        if not all(0 <= id_ < self.vocab_size for id_ in ids):
            raise IndexError(f"asked for ids {ids}")
        return self.inner.forward(tokens, cache)


def target() -> SpeculativeModel:
    return Strict(TableModel(to_mx(LOGITS)))


def small() -> SpeculativeModel:
    """The same model, without the last columns."""
    return Strict(TableModel(to_mx(LOGITS[:FEW, :FEW])))


def large() -> SpeculativeModel:
    """The same model with more columns, which are likely ones."""
    logits = table(2, MANY + 16) + 4.0
    logits[:MANY, :MANY] = LOGITS
    return Strict(TableModel(to_mx(logits)))


PROMPTS: Final = {
    "none in the prompt": [3, 5],
    "first": [70, 5],
    "last": [5, 70],
    "nothing else": [79, 64, 70],
    "a long prompt": [*range(80)] * 2 + [3],
}


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=list(PROMPTS))
def test_a_draft_with_fewer_ids_drafts_between_those_that_it_lacks(prompt: list[int]) -> None:
    sampling = Sampling(temperature=1.0, seed=3)
    plain = reference.ids_of(Decoder(target(), Off(), sampling).generate(prompt, 60))
    assert any(id_ >= FEW for id_ in plain)
    assert any(id_ < FEW for id_ in plain)
    model = small()
    caches = model.make_cache()
    watched = WatchedProposer(DraftModel(model, cache=caches))
    decoder = Decoder(target(), Fixed(watched, 3), sampling)
    assert reference.ids_of(decoder.generate(prompt, 60)) == plain
    # It drafts nothing only if it lacks the last token, and is right elsewhere.
    assert {bool(ids) for _, last_token, ids in watched.drafts if last_token < FEW} == {True}
    assert {bool(ids) for _, last_token, ids in watched.drafts if last_token >= FEW} == {False}
    assert decoder.stats.accepted_tokens > 10
    assert caches[0].length() == len(prompt) + 60


@final
class Named(Strict):
    """Of a known vocabulary, so that any number of columns is allowed."""

    @property
    @override
    def vocabulary(self) -> Mapping[str, int]:
        return {str(id_): id_ for id_ in range(self.vocab_size)}


@pytest.mark.parametrize("columns", [2, 3, 9])
@pytest.mark.parametrize("mode", MODES)
def test_a_draft_of_fewer_or_more_ids_leaves_the_distribution(mode: Mode, columns: int) -> None:
    sampling = Sampling(temperature=0.9, top_k=3, seed=1, mode=mode)
    draft = DraftModel(Named(TableModel(to_mx(table(3, columns)))))
    decoder = Decoder(Named(TableModel(to_mx(TARGET))), Fixed(draft, 2), sampling)
    text = reference.ids_of(decoder.generate([START], 500))
    assert decoder.stats.accepted_tokens > 50
    assert p_of_steps(text, np.stack([distribution(row, sampling) for row in TARGET])) > 1e-6


def test_a_draft_with_more_ids_drafts_those_of_the_target() -> None:
    sampling = Sampling(temperature=1.0, seed=3)
    plain = reference.ids_of(Decoder(target(), Off(), sampling).generate([3, 70], 40))
    watched = WatchedProposer(DraftModel(large()))
    decoder = Decoder(target(), Fixed(watched, 3), sampling)
    assert reference.ids_of(decoder.generate([3, 70], 40)) == plain
    assert max(id_ for _, _, ids in watched.drafts for id_ in ids) < MANY
    assert decoder.stats.accepted_tokens > 20


@pytest.mark.parametrize("position", [1, 2, 3])
def test_verify_reads_such_a_text_as_the_draft_does(position: int) -> None:
    text = [70, 5, 79, 9]
    drafter = model_drafter(small())
    proposer = drafter.make()
    proposer.attach(target())
    proposer.begin(0)
    known = text[: position - 1]
    if known:
        hidden = mx.zeros((1, len(known), 1))
        proposer.commit(Commit(mx.array(known), hidden, None, known))
    drafted = proposer.propose(mx.array(text[position - 1 : position]), 2, most_likely)
    expected = drafter.offline(target(), text)(position, 2, most_likely)
    assert to_ints(drafted.tokens) == expected
    assert bool(expected) == (position == 2)


def most_likely(logits: mx.array, index: int, /) -> DraftToken:
    return DraftToken(mx.argmax(logits, axis=-1))


CRASHED: Final = """
import mlx.core as mx
import speculate as sp
from mlx_lm.models import llama

def model(size):
    args = llama.ModelArgs(
        model_type="llama", hidden_size=8, num_hidden_layers=1, intermediate_size=8,
        num_attention_heads=1, rms_norm_eps=1e-6, vocab_size=size, tie_word_embeddings=True,
    )
    mx.random.seed(size)
    return sp.adapt(llama.Model(args), vocabulary={str(n): n for n in range(size)})

target, draft = model(150_000), model(512)
prompt = [149_999, 3, 511, 512, 100_000, 140_000]
for sampling in (None, sp.Sampling(temperature=1.0, seed=1, mode="rejection")):
    decoder = sp.Decoder(target, sp.Fixed(sp.DraftModel(draft), 4), sampling)
    tokens = [token.id for token in decoder.generate(prompt, 12)]
    if sampling is None:
        assert tokens == [token.id for token in sp.Decoder(target, sp.Off()).generate(prompt, 12)]
"""


def test_a_far_smaller_draft_does_not_end_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CRASHED], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
