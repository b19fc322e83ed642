"""What a rejection costs: no call of the recurrence, no forward, no copy, and a bounded fold."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any, Final

import mlx.core as mx
import pytest

from speculate import Decoder, Fixed, speculation
from speculate.backends.arrays import RewindableArraysCache
from speculate.models import gated_delta
from speculate.models.gated_delta import MAX_FUSED_TOKENS, BlockRecord, FusedReplay, KeptStates
from speculate.protocols import DeferredState
from tests.support import reference
from tests.support.cache_contents import Caches, cold, feed, ids, model
from tests.support.recording import WatchedModel

WAYS: Final = ("qwen3_5", "qwen3_5_folded")
DELTA_LAYERS: Final = 2


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The rows of every call of the recurrence, as mlx-lm's own functions are called."""
    called: list[int] = []

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(q: mx.array, *args: Any, **kwargs: Any) -> Any:
            called.append(q.shape[1])
            return function(q, *args, **kwargs)

        return run

    for module, name in ((gated_delta, "gated_delta_update"), (gated_delta, "gated_delta_ops")):
        monkeypatch.setattr(module, name, counted(getattr(module, name)))
    yield called


def states(caches: Caches) -> list[RewindableArraysCache]:
    return [cache for cache in caches if isinstance(cache, RewindableArraysCache)]


def rounds(name: str, drafts: int, accepted: list[int], runs: list[int]) -> list[list[int]]:
    """The rows that the recurrence ran in each round, first prefill and then one a round."""
    caches = cold(model(name), ids(9))[1]
    each = []
    with speculation(caches) as window:
        for index, good in enumerate(accepted):
            runs.clear()
            feed(model(name), caches, ids(1 + drafts, seed=index))
            window.keep(1 + good)
            each.append(list(runs))
    return each


def test_picking_runs_the_rows_of_each_block_and_no_others(runs: list[int]) -> None:
    for block in rounds("qwen3_5", 3, [0, 2, 3, 1, 1, 3, 0], runs):
        assert block == [1] * 4 * DELTA_LAYERS


def test_a_fold_runs_what_stays_in_the_call_of_the_next_block(runs: list[int]) -> None:
    accepted = [0, 2, 3, 1, 1, 3, 0]
    folded = [0, 1, 4, 0, 2, 4, 0]
    for block, rows in zip(rounds("qwen3_5_folded", 3, accepted, runs), folded, strict=True):
        assert block == [rows + 4] * DELTA_LAYERS


def test_accepting_everything_replays_nothing(runs: list[int]) -> None:
    for block in rounds("qwen3_5_folded", 3, [3, 3, 3], runs):
        assert block == [4] * DELTA_LAYERS


def test_rejections_in_a_row_do_not_add_up_without_bound(runs: list[int]) -> None:
    """Now and then a run of its own makes the state; in between none does."""
    blocks = rounds("qwen3_5_folded", 3, [1] * 60, runs)
    assert max(max(block) for block in blocks) <= MAX_FUSED_TOKENS + 4
    extra = [block for block in blocks if len(block) > DELTA_LAYERS]
    assert 1 <= len(extra) <= 60 * 2 / (MAX_FUSED_TOKENS - 1)


def test_single_steps_are_rewound_without_a_replay(runs: list[int]) -> None:
    """As a draft model's are: each has left its state."""
    caches = cold(model("qwen3_5_folded"), ids(9))[1]
    runs.clear()
    with speculation(caches) as window:
        for good in (1, 3, 0, 2):
            for token in ids(4, seed=good):
                feed(model("qwen3_5_folded"), caches, [token])
            window.keep(good)
    assert set(runs) == {1}
    assert len(runs) == 4 * 4 * DELTA_LAYERS


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("wrong", [None, "each", 0])
def test_a_decoder_runs_no_forward_and_no_recurrence_for_a_rejection(
    name: str, wrong: object, runs: list[int]
) -> None:
    watched = WatchedModel(reference.get(name).model)
    proposer = reference.scripted(name, reference.PROMPT, 21, reference.always(wrong))
    decoder = Decoder(watched, Fixed(proposer, 4))
    running = decoder.generate(reference.PROMPT, 20)
    runs.clear()
    for _ in range(15):
        next(running)
    prefill, *rounds = watched.widths
    assert prefill == len(reference.PROMPT) - 1
    assert len(rounds) == decoder.stats.rounds + 1
    if name == "qwen3_5_folded":
        assert len(runs) == DELTA_LAYERS * len(watched.widths)
    if name == "qwen3_5" or wrong is None:
        assert sum(runs) == DELTA_LAYERS * sum(watched.widths)
    running.close()


@pytest.mark.parametrize("name", WAYS)
def test_what_is_kept_was_made_by_the_forward(name: str) -> None:
    """Every array of a deferred rewind exists already: evaluating it takes no memory."""
    caches = cold(model(name), ids(9))[1]
    gc.disable()  # so that nothing else is freed meanwhile
    with speculation(caches) as window:
        for seed in range(3):
            feed(model(name), caches, ids(5, seed=seed))
            mx.eval([cache.arrays() for cache in caches])
            before = mx.get_active_memory()
            window.keep(2)
            mx.eval(
                [array for cache in states(caches) for array in rewind_arrays(cache.deferred())]
            )
            assert mx.get_active_memory() <= before
    gc.enable()


def rewind_arrays(deferred: DeferredState | None) -> list[mx.array]:
    """The arrays that a layer holds to go on from a deferred rewind."""
    assert deferred is not None
    block = deferred.restore
    assert isinstance(block, BlockRecord)
    if isinstance(block.states, KeptStates):
        return [block.conv_input, *block.states.states]
    assert isinstance(block.states, FusedReplay)
    inputs = block.states.inputs
    assert block.states.before is not None
    return [block.conv_input, block.states.before, inputs.qkv, inputs.a, inputs.b]
