"""How a run uses the device: ahead of the host, once a round, and without holding on."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Final

import mlx.core as mx
import pytest

from speculate import Decoder, DraftModel, Fixed, MTPChain, Off, PromptLookup
from speculate.protocols import Round, Strategy
from speculate.testing import ScheduledStrategy, ScriptedProposer
from tests.support import reference, tiny
from tests.support.mtp_heads import with_head
from tests.support.recording import WatchedModel

NAMES: Final = (*reference.PROMISED, "lfm2")


@pytest.mark.parametrize("depths", [(0,), (0, 0, 2)], ids=str)
def test_a_round_without_drafts_launches_the_next_step_before_it_is_read(
    depths: tuple[int, ...],
) -> None:
    model = WatchedModel(reference.get("qwen3_5").model)
    script = reference.scripted("qwen3_5", reference.PROMPT, 12, reference.always(0))
    decoder = Decoder(model, ScheduledStrategy([(script, k) for k in depths]))
    running = decoder.generate(reference.PROMPT, 12)
    next(running)
    # The prompt, its last token, and the token that was just emitted.
    assert model.widths == [len(reference.PROMPT) - 1, 1, 1]
    next(running)
    # Whoever drafts next needs to know the last token first.
    assert model.widths[3:] == ([1] if len(depths) == 1 else [])


@pytest.mark.parametrize("name", NAMES)
def test_what_was_launched_ahead_is_in_no_cache_that_is_returned(name: str) -> None:
    for emitted in (1, 2, 5):
        for end in (Decoder.settle, None):
            caches = reference.stock_caches(name)
            decoder = Decoder(reference.get(name).model, Off())
            running = decoder.generate(reference.PROMPT, 6, caches)
            tokens = [next(running) for _ in range(emitted)]
            running.close() if end is None else end(decoder)
            reference.check_holds(name, caches, [*reference.PROMPT, *reference.ids_of(tokens)])
            running.close()


# One synchronisation a round.


class Waits:
    """Counts the calls that make the host wait for the device, and the reads behind them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.evaluations = 0
        self.reads = 0
        evaluate: Callable[..., None] = mx.eval

        def counted(*arrays: object) -> None:
            self.evaluations += 1
            evaluate(*arrays)

        patch.setattr(mx, "eval", counted)
        for name in ("item", "tolist"):
            patch.setattr(mx.array, name, self._reading(getattr(mx.array, name)))

    def _reading(self, read: Callable[[mx.array], object]) -> Callable[[mx.array], object]:
        def counted(array: mx.array) -> object:
            self.reads += 1
            return read(array)

        return counted


@pytest.mark.parametrize("kind", ["off", "scripted", "draft", "head", "lookup"])
def test_a_round_waits_for_the_device_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "qwen3_5"
    model = with_head(name).model if kind == "head" else reference.get(name).model
    script = reference.scripted(name, reference.PROMPT, 12, reference.always("each"))
    strategies: dict[str, Callable[[], Strategy]] = {
        "off": Off,
        "scripted": lambda: Fixed(script, 3),
        "draft": lambda: Fixed(DraftModel(reference.get("small_dense").model), 3),
        "head": lambda: Fixed(MTPChain(), 3),
        "lookup": lambda: Fixed(PromptLookup(min_ngram=1), 3),
    }
    decoder = Decoder(model, strategies[kind]())
    running = decoder.generate(reference.PROMPT, 12)
    next(running)
    waits = Waits(monkeypatch)
    before = decoder.stats.rounds
    for _ in range(9):
        next(running)
    rounds = decoder.stats.rounds - before
    assert rounds > 2
    monkeypatch.undo()
    # Without drafts the host reads one step while the next one runs, and waits for nothing else.
    assert waits.evaluations <= (1 if kind == "off" else rounds + 1)
    # Drafts, tokens and how many were accepted: all of them came with the one evaluation.
    assert waits.reads <= 3 * (rounds + 1)
    running.close()


# Memory.


def grown(name: str, rounds: int, every: int) -> list[int]:
    """Bytes in use after each `every` rounds of rejections."""
    seen: list[int] = []
    # Right now and then, by chance only.
    script = ScriptedProposer([0] * (4 * rounds), lambda n: n % 3, vocab_size=tiny.VOCAB)

    def look(round: Round) -> None:
        script.commits.clear()
        if (round.index + 1) % every == 0:
            gc.collect()
            seen.append(mx.get_active_memory())

    decoder = Decoder(reference.get(name).model, Fixed(script, 3), observer=look)
    for _ in decoder.generate(reference.PROMPT, rounds):
        pass
    return seen


@pytest.mark.parametrize(
    "rounds", [600, pytest.param(2000, marks=pytest.mark.soak)], ids=["short", "long"]
)
def test_memory_does_not_grow_with_rejections(rounds: int) -> None:
    seen = grown("shallow", rounds, rounds // 10)
    # One layer keeps rows: 2 heads of 8 numbers, keys and values, in steps of 256 rows.
    step = 2 * 2 * 8 * 4 * 256
    steps = (rounds + len(reference.PROMPT)) // 256
    assert max(seen) - seen[0] <= step * steps + 4096, seen
