"""mlx-lm's own speculative loop, over adapters and rewindable caches."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step, speculative_generate_step
from mlx_lm.models.cache import make_prompt_cache

from speculate.errors import RewindError
from speculate.models.adapter import StockAdapter
from tests.support.cache_contents import (
    CUT_ANYWHERE,
    EVERY,
    adapted,
    assert_equal,
    assert_same,
    cold,
    holding,
    ids,
    model,
    speculate_all,
    stock,
)

PROMPT = ids(11, seed=1)
Step = tuple[object, mx.array]


def plain(driven: StockAdapter, count: int) -> list[Step]:
    stock_driven: Any = driven
    return list(generate_step(mx.array(PROMPT), stock_driven, max_tokens=count))


def speculative(
    target: Any, draft: Any, count: int, drafts: int, *, step: int = 512
) -> tuple[list[Step], list[Any], list[Any]]:
    """What the loop yields, and the caches of target and draft it leaves."""
    caches, drafts_caches = target.make_cache(), draft.make_cache()
    speculate_all(caches)
    speculate_all(drafts_caches)
    yielded = speculative_generate_step(
        mx.array(PROMPT),
        target,
        draft,
        num_draft_tokens=drafts,
        max_tokens=count,
        prompt_cache=[*caches, *drafts_caches],
        prefill_step_size=step,
    )
    return [(token, logprobs) for token, logprobs, _ in yielded], caches, drafts_caches


@pytest.mark.parametrize(
    ("family", "drafts"),
    [*((family, 4) for family in CUT_ANYWHERE), ("qwen3_5", 1), ("gpt_oss", 1)],
)
def test_the_stock_loop_gives_what_plain_decoding_gives(family: str, drafts: int) -> None:
    """With a draft of the same kind and other weights, which is nearly always wrong."""
    expected = plain(model(family), 12)
    same = family in ("qwen3_next", "dense")
    draft = model(family) if same else model("qwen3_5" if family != "qwen3_5" else "dense")
    found, caches, _ = speculative(model(family), draft, 12, drafts, step=4)
    assert [token for token, _ in found] == [token for token, _ in expected]
    for (_, left), (_, right) in zip(found, expected, strict=True):
        assert_equal(left, right, "log-probabilities")
    # mlx-lm's loop may leave its last token unfed, and nothing else.
    text = [*PROMPT, *(int(str(token)) for token, _ in expected)]
    lengths = {layer.length() for layer in caches}
    assert len(lengths) == 1
    assert max(lengths) in (len(text), len(text) - 1)
    assert_same(holding(caches), holding(cold(model(family), text[: max(lengths)])[1]), "left")


@pytest.mark.parametrize("drafts", [2, 5])
def test_a_hybrid_draft_in_the_stock_loop_is_trimmed_step_by_step(drafts: int) -> None:
    """An accepting draft: one part of the loop's drafts right, the others not."""
    target = model("qwen3_5")
    nearly: Any = EVERY["qwen3_5"]()
    head = nearly.language_model.lm_head
    head.weight = head.weight + 0.3 * mx.random.normal(head.weight.shape, key=mx.random.key(3))
    found, _, drafts_caches = speculative(target, adapted(nearly), 24, drafts)
    expected = plain(target, 24)
    assert [token for token, _ in found] == [token for token, _ in expected]
    (length,) = {layer.length() for layer in drafts_caches}
    text = [*PROMPT, *(int(str(token)) for token, _ in expected)]
    fresh = cold(adapted(nearly), text[:length])[1]
    assert_same(holding(drafts_caches), holding(fresh), "the draft's caches")


def test_the_stock_loop_refuses_hybrids_of_its_own() -> None:
    caches = [*make_prompt_cache(stock("qwen3_5")), *make_prompt_cache(stock("dense"))]
    with pytest.raises(ValueError, match="trimmable"):
        next(
            speculative_generate_step(
                mx.array(PROMPT), stock("qwen3_5"), stock("dense"), prompt_cache=caches
            )
        )


def test_the_stock_loop_refuses_ours_until_they_record() -> None:
    caches = [*model("qwen3_5").make_cache(), *model("dense").make_cache()]
    with pytest.raises(ValueError, match="trimmable"):
        next(
            speculative_generate_step(
                mx.array(PROMPT),
                model("qwen3_5"),  # type: ignore[arg-type]
                model("dense"),  # type: ignore[arg-type]
                prompt_cache=caches,
            )
        )


def test_a_model_that_rewinds_by_whole_blocks_only_stops_the_stock_loop() -> None:
    """It does not go on with rejected drafts in some of its layers."""
    with pytest.raises(RewindError, match="cannot trim"):
        speculative(model("lfm2"), model("dense"), 12, 3)
