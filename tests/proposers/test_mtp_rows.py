"""What the head is fed: every committed token once, in order, with true hidden states.

Row `i` pairs the hidden state of token `i` with token `i + 1`.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final

import mlx.core as mx
import pytest

from speculate import Decoder, Fixed, MTPChain
from speculate.proposers import _chain
from speculate.protocols import Round
from speculate.testing import ScheduledStrategy, ScriptedProposer
from tests.support import reference
from tests.support.mtp_heads import CHOOSE, KnowingHead, Row, with_knowing_head
from tests.support.recording import Broken, Ticker, quiet, wrong_after

NAME: Final = "qwen3_5"
NEXT: Final = 50
"""A token that ends a text for the head, so that it takes in all that waits."""


class Run:
    """A decoder, a chain and a head that knows what comes."""

    def __init__(
        self,
        prompt: Sequence[int],
        depths: Sequence[int],
        wrong: Container[int] = (),
        step: int = 2048,
        ticker: Ticker | None = None,
        count: int = 24,
    ) -> None:
        self.text = [*prompt, *reference.truth(NAME, prompt, count)]
        tick = quiet if ticker is None else ticker
        self.tiny, self.head = with_knowing_head(NAME, self.text, wrong, tick)
        self.chain = MTPChain()
        self.rounds: list[Round] = []
        self.decoder = Decoder(
            self.tiny.model,
            ScheduledStrategy([(self.chain, depth) for depth in depths]),
            prefill_step_size=step,
            observer=self.rounds.append,
        )

    def rows(self) -> list[Row]:
        """All rows, once the head has taken in everything that waits and `NEXT`."""
        self.chain.propose(mx.array([NEXT], dtype=mx.uint32), 1, CHOOSE)
        return self.head.rows()

    def accepted(self) -> list[int]:
        return [round.accepted for round in self.rounds if round.drafted]


def check_rows(rows: Sequence[Row], text: Sequence[int], start: int = 0) -> None:
    """Rows are those of tokens `start` to the end of a sequence, and `NEXT` after it."""
    assert [row.position for row in rows] == list(range(start, len(text)))
    assert [row.token for row in rows] == [*text[start + 1 :], NEXT]
    model = reference.get(NAME).model
    hidden = model.forward(mx.array([text]), model.make_cache()).hidden[0, start:]
    found = mx.stack([row.hidden for row in rows])
    assert mx.array_equal(found, hidden).item()


@pytest.mark.parametrize("step", [1, 3, 4, 5, 10, 11])
@pytest.mark.parametrize("depth", [0, 2])
def test_rows_of_the_prompt_do_not_depend_on_its_chunks(step: int, depth: int) -> None:
    prompt = reference.text_of(11)
    run = Run(prompt, [depth], step=step)
    tokens = reference.ids_of(run.decoder.generate(prompt, 3))
    check_rows(run.rows(), [*prompt, *tokens])


@pytest.mark.parametrize(
    ("accepts", "depth"),
    [((0, 1, 2, 0, 3), 3), ((1,) * 10, 1), ((0,) * 6, 2), ((3, 3, 0, 3), 3), ((4, 0, 0, 2), 4)],
    ids=str,
)
def test_rows_have_no_hole_and_none_twice(accepts: tuple[int, ...], depth: int) -> None:
    count = sum(accepts) + len(accepts)
    prompt = reference.PROMPT
    run = Run(prompt, [depth], wrong_after(accepts, len(prompt), depth), count=24)
    caches = reference.stock_caches(NAME)
    running = run.decoder.generate(prompt, 24, caches)
    tokens = [next(running).id for _ in range(count)]
    running.close()
    assert run.accepted() == list(accepts)
    check_rows(run.rows(), [*prompt, *tokens])


@pytest.mark.parametrize("depths", [(3, 0), (2, 0, 0, 0, 1), (0, 0, 0, 4), (1, 3, 0, 2)], ids=str)
@pytest.mark.parametrize("wrong", [(), (8, 11, 12, 17)], ids=["right", "wrong"])
def test_rounds_without_drafts_leave_no_hole(
    depths: tuple[int, ...], wrong: tuple[int, ...]
) -> None:
    run = Run(reference.PROMPT, depths, wrong)
    tokens = reference.ids_of(run.decoder.generate(reference.PROMPT, 15))
    check_rows(run.rows(), [*reference.PROMPT, *tokens])


def test_rounds_that_another_proposer_drafted_leave_no_hole() -> None:
    run = Run(reference.PROMPT, [1], wrong={9, 10, 15})
    other = ScriptedProposer(run.text, lambda n: n % 3, vocab_size=64)
    strategy = ScheduledStrategy([(run.chain, 3), (other, 2), (other, 4), (run.chain, 0)])
    tokens = reference.ids_of(Decoder(run.tiny.model, strategy).generate(reference.PROMPT, 18))
    check_rows(run.rows(), [*reference.PROMPT, *tokens])


@pytest.mark.parametrize("flush", [1, 3, 256])
def test_rows_that_wait_long_are_taken_in_between(
    flush: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_chain, "MAX_BACKLOG", flush)
    run = Run(reference.PROMPT, [0] * 9 + [3, 2], wrong={17}, step=2)
    tokens = reference.ids_of(run.decoder.generate(reference.PROMPT, 20))
    check_rows(run.rows(), [*reference.PROMPT, *tokens])


def test_logits_come_for_few_of_the_rows_that_waited() -> None:
    # A large vocabulary's for all of them would be more than the head's whole work.
    run = Run(reference.text_of(40), [*[0] * 9, 2])
    tokens = reference.ids_of(run.decoder.generate(reference.text_of(40), 12))
    assert run.head.widths[0] > _chain.MAX_SHARED_BACKLOG
    assert max(run.head.widths[1:]) <= _chain.MAX_SHARED_BACKLOG + 1
    check_rows(run.rows(), [*reference.text_of(40), *tokens])


@pytest.mark.parametrize("emitted", range(1, 7))
def test_closing_in_the_middle_of_a_block_leaves_no_row_of_what_was_not_emitted(
    emitted: int,
) -> None:
    run = Run(reference.PROMPT, [4])
    running = run.decoder.generate(reference.PROMPT, 20)
    tokens = [next(running).id for _ in range(emitted)]
    running.close()
    check_rows(run.rows(), [*reference.PROMPT, *tokens])


@pytest.mark.parametrize("emitted", [1, 2, 5])
def test_settling_in_the_middle_of_a_block_leaves_no_hole(emitted: int) -> None:
    run = Run(reference.PROMPT, [4])
    running = run.decoder.generate(reference.PROMPT, 14)
    tokens = [next(running).id for _ in range(emitted)]
    run.decoder.settle()
    tokens += reference.ids_of(running)
    check_rows(run.rows(), [*reference.PROMPT, *tokens])


@pytest.mark.parametrize("count", [1, 4, 6])
def test_a_second_turn_goes_on_in_the_same_rows(count: int) -> None:
    run = Run(reference.PROMPT, [3], wrong={8})
    caches = reference.stock_caches(NAME)
    text = [
        *reference.PROMPT,
        *reference.ids_of(run.decoder.generate(reference.PROMPT, count, caches)),
    ]
    text += reference.SECOND
    text += reference.ids_of(run.decoder.generate(reference.SECOND, 4, caches))
    assert len(run.head.starts) <= 2
    check_rows(run.rows(), text)


def test_a_fresh_decoder_starts_late_with_positions_that_do_not_lie() -> None:
    first = Run(reference.PROMPT, [3])
    caches = reference.stock_caches(NAME)
    text = [
        *reference.PROMPT,
        *reference.ids_of(first.decoder.generate(reference.PROMPT, 5, caches)),
    ]
    length = len(text)
    second = Run([*text, *reference.SECOND], [3])
    tokens = list(second.decoder.generate(reference.SECOND, 9, caches))
    reference.check_tokens(NAME, [*text, *reference.SECOND], tokens)
    assert second.head.starts[-1] == length
    # Late rows are as good as early ones.
    assert second.decoder.stats.accepted_tokens == second.decoder.stats.draft_tokens > 0
    check_rows(second.rows(), [*text, *reference.SECOND, *reference.ids_of(tokens)], start=length)


def test_the_first_token_of_a_late_start_has_no_row_before_it() -> None:
    caches = reference.stock_caches(NAME)
    reference.feed(NAME, caches, reference.PROMPT)
    run = Run([*reference.PROMPT, 7], [3])
    tokens = list(run.decoder.generate([7], 6, caches))
    reference.check_tokens(NAME, [*reference.PROMPT, 7], tokens)
    check_rows(
        run.rows(), [*reference.PROMPT, 7, *reference.ids_of(tokens)], start=len(reference.PROMPT)
    )


def test_a_new_text_starts_new_rows() -> None:
    run = Run(reference.PROMPT, [3])
    list(run.decoder.generate(reference.SECOND, 5))
    tokens = reference.ids_of(run.decoder.generate(reference.PROMPT, 5))
    check_rows(run.rows(), [*reference.PROMPT, *tokens])


@pytest.mark.parametrize("place", ["head", "head done"])
@pytest.mark.parametrize("at", [1, 2, 3, 4, 6, 9])
def test_a_step_that_fails_leaves_no_hole_for_the_next_turn(place: str, at: int) -> None:
    ticker = Ticker(place, at)
    run = Run(reference.PROMPT, [3, 1, 0, 2], wrong={8, 13}, ticker=ticker)
    caches = reference.stock_caches(NAME)
    text = list(reference.PROMPT)
    with pytest.raises(Broken):
        for token in run.decoder.generate(reference.PROMPT, 20, caches):
            text.append(token.id)
    assert text == run.text[: len(text)]
    text += reference.SECOND
    text += reference.ids_of(run.decoder.generate(reference.SECOND, 6, caches))
    check_rows(run.rows(), text)


def test_the_head_may_be_any_that_keeps_the_protocol() -> None:
    tiny, head = with_knowing_head(
        "gpt_oss", [*reference.PROMPT, *reference.truth("gpt_oss", reference.PROMPT, 20)]
    )
    decoder = Decoder(tiny.model, Fixed(MTPChain(), 4))
    tokens = list(decoder.generate(reference.PROMPT, 20))
    reference.check_tokens("gpt_oss", reference.PROMPT, tokens)
    assert decoder.stats.accepted_tokens == decoder.stats.draft_tokens
    assert isinstance(head, KnowingHead)
