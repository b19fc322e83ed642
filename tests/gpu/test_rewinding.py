"""Rounds that reject, on the GPU: what is kept is the text's, and what is taken back is gone."""

from __future__ import annotations

import random
from typing import Final

import pytest

from speculate import verify
from speculate.testing import assert_lossless
from tests.support import gpu_models, tiny
from tests.support.command_runs import run

TEXT: Final = random.Random(3).choices(range(tiny.VOCAB), k=300)


@pytest.mark.parametrize("name", [*gpu_models.TINY, *gpu_models.BUNDLED])
def test_a_drafter_that_is_wrong_in_chosen_places_changes_nothing(
    name: str, tolerance: float
) -> None:
    """Depths from 0 to 9 in random order; each round's logits are a cold prefill's."""
    model = gpu_models.usable(name, tolerance)
    prompts = [TEXT[:1], TEXT[:70]]
    assert_lossless(model, prompts=prompts, tokens=60, depths=range(10), tolerance=tolerance)


@pytest.mark.parametrize("name", gpu_models.TINY)
def test_what_is_rejected_shows_in_no_bit(name: str) -> None:
    """Two walks of equal blocks that take back other tokens."""
    found = verify.check_tails(verify.VerificationTarget(gpu_models.model(name), TEXT))
    assert found.compared > 200
    assert not found.differences


def test_no_bundled_model_has_a_bug(capsys: pytest.CaptureFixture[str]) -> None:
    said = run(capsys, "verify", "--tokens", "12")
    assert said.status == 0, said.out
