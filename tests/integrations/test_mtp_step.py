"""mlx-lm's step with the model's own head."""

from __future__ import annotations

import mlx.core as mx
import pytest
from mlx_lm.sample_utils import make_sampler

from speculate.errors import HeadNotFoundError, OptionError
from speculate.integrations.mlx_lm import mtp_generate_step
from tests.support import reference
from tests.support.mtp_heads import with_head, with_knowing_head
from tests.support.paired_caches import check_on_loan, ids

PROMPT = mx.array(reference.PROMPT)
HEADED = ("qwen3_5", "qwen3_5_wrapped", "qwen3_next", "qwen3_5_moe")


@pytest.mark.parametrize("depth", [0, 1, 4])
@pytest.mark.parametrize("name", HEADED)
def test_tokens_are_plain_decodings(name: str, depth: int) -> None:
    caches = reference.stock_caches(name)
    steps = mtp_generate_step(
        PROMPT,
        with_head(name).model,
        num_draft_tokens=depth,
        max_tokens=11,
        prompt_cache=caches,
        prefill_step_size=2,
    )
    found = ids(steps)
    assert found == reference.truth(name, reference.PROMPT, 11)
    reference.check_holds(name, caches, [*reference.PROMPT, *found])


def test_accepted_drafts_are_reported() -> None:
    text = [*reference.PROMPT, *reference.truth("qwen3_5", reference.PROMPT, reference.LONG)]
    model = with_knowing_head("qwen3_5", text, wrong={9})[0].model
    found = list(mtp_generate_step(PROMPT, model, num_draft_tokens=3, max_tokens=10))
    assert [step[0] for step in found] == text[6:16]
    #  6 7 8 accepted but 9 is wrong, so the first round gives three drafts and its own token.
    wanted = [True, True, True, False, True, True, True, False, True, False]
    assert [drafted for _, _, drafted in found] == wanted


def test_closed_after_any_token() -> None:
    text = [*reference.PROMPT, *reference.truth("qwen3_5", reference.PROMPT, reference.LONG)]
    model = with_knowing_head("qwen3_5", text, wrong={8, 11})[0].model
    for taken in range(1, 9):
        caches = reference.stock_caches("qwen3_5")
        steps = mtp_generate_step(PROMPT, model, num_draft_tokens=4, prompt_cache=caches)
        for _ in range(taken):
            next(steps)
        check_on_loan(caches)
        steps.close()
        reference.check_holds("qwen3_5", caches, text[: 6 + taken])


def test_what_cannot_be_used_is_refused() -> None:
    model = with_head("qwen3_5").model
    with pytest.raises(HeadNotFoundError, match="load_mtp_head"):
        list(mtp_generate_step(PROMPT, reference.get("qwen3_5").model))
    assert (
        len(list(mtp_generate_step(PROMPT, model, sampler=make_sampler(temp=0.5), max_tokens=9)))
        == 9
    )
    both = [*reference.stock_caches("qwen3_5"), *reference.stock_caches("dense")]
    with pytest.raises(OptionError, match="7 caches, it needs 4"):
        list(mtp_generate_step(PROMPT, model, prompt_cache=both))
