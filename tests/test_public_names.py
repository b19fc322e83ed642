"""The names that `import speculate` promises, and how its objects describe themselves."""

from __future__ import annotations

import pytest

import speculate
from speculate import Decoder, Fixed, Off, Sampling
from tests.support import reference

PROMISED = {
    "Adaptive", "Decoder", "DraftModel", "Fixed", "MTPChain", "Off", "PromptLookup", "Sampling",
    "SpeculateError", "SpeculativeModel", "Stats", "Token", "Window", "adapt", "generate", "load",
    "load_demo", "load_mtp_head", "speculation", "stream_generate",
}  # fmt: skip


def test_all_names_what_is_promised() -> None:
    assert set(speculate.__all__) == PROMISED
    assert len(speculate.__all__) == len(PROMISED)
    assert all(getattr(speculate, name).__name__ == name for name in PROMISED)


@pytest.mark.parametrize("depth", [0, 2])
def test_a_decoder_describes_its_parts_and_whether_it_runs(depth: int) -> None:
    model = reference.get("dense").model
    strategy = (
        Fixed(reference.scripted("dense", reference.PROMPT, 9, reference.always(0)), depth)
        if depth
        else Off()
    )
    decoder = Decoder(model, strategy, Sampling(temperature=0.5, seed=3))
    parts = f"{type(model).__name__}, strategy={strategy!r}, sampling={decoder._sampling!r}"
    assert "temperature=0.5" in repr(decoder)
    assert repr(decoder) == f"Decoder({parts}, idle)"
    running = decoder.generate(reference.PROMPT, 4)
    next(running)
    assert repr(decoder) == f"Decoder({parts}, running)"
    running.close()
    assert repr(decoder) == f"Decoder({parts}, idle)"


def test_a_token_describes_itself_without_computing_its_log_probabilities() -> None:
    token = next(Decoder(reference.get("dense").model, Off()).generate(reference.PROMPT, 1))
    described = f"Token(id={token.id}, from_draft=False, proposer=None, finish_reason='length')"
    assert repr(token) == described
