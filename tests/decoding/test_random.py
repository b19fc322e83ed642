"""Random sessions: any proposers, any depths, any turns, broken off and settled anywhere."""

from __future__ import annotations

import random

import pytest

from speculate import Decoder, DraftModel, MTPChain, Token
from speculate.protocols import Proposer
from speculate.testing import ScheduledStrategy, ScriptedProposer
from tests.support import reference, tiny
from tests.support.mtp_heads import KnowingHead
from tests.support.recording import Broken, GuidedModel, Ticker, WatchedProposer

COUNT = 10


class Session:
    """A list of caches, what it ought to hold, and a decoder whose proposers half know it."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.name = self.dice.choice((*reference.PROMISED, "lfm2"))
        self.caches = reference.stock_caches(self.name)
        self.text: list[int] = []
        # What comes in all turns, shared with everyone who knows.
        self.script: list[int] = []
        self.wrong = {i for i in range(99) if self.dice.random() < 0.3}
        self.ticker = Ticker()
        self.decoder = self._decoder()

    def _decoder(self) -> Decoder:
        head = KnowingHead(self.script, self.wrong)
        recurrence = tiny.recurrence(self.name)
        model = reference.adapted(reference.get(self.name).module, head, recurrence=recurrence)
        drafts = ("small_dense", "qwen3_5", "qwen3_5_folded", "gpt_oss", "lfm2")
        small = reference.get(self.dice.choice(drafts)).model
        proposers: list[Proposer] = [
            ScriptedProposer(self.script, lambda n: n % 4, vocab_size=tiny.VOCAB),
            DraftModel(GuidedModel(small, self.script, self.wrong)),
            MTPChain(),
        ]
        watched = [WatchedProposer(proposer, self.ticker) for proposer in proposers]
        used = self.dice.sample(watched, self.dice.randint(1, 3))
        plans: list[tuple[Proposer, int]] = [
            (self.dice.choice(used), self.dice.choice((0, 0, 1, 2, 4, 7))) for _ in range(7)
        ]
        step = self.dice.choice((1, 2, 3, 2048))
        return Decoder(model.model, ScheduledStrategy(plans), prefill_step_size=step)

    def turn(self) -> None:
        """Take a turn, in one of many ways, and check everything."""
        prompt = reference.text_of(self.dice.randint(1, 9), self.dice.randrange(10))
        before = [*self.text, *prompt]
        self.script[:] = [*before, *reference.truth(self.name, before, COUNT)]
        count = self.dice.randint(1, COUNT)
        ending = self.dice.choice(("end", "end", "close", "fault", "stop"))
        stop = [self.script[len(before) + count // 2]] if ending == "stop" else []
        if ending == "fault":
            place = self.dice.choice(("propose", "propose done"))
            self.ticker.place, self.ticker.at = place, self.ticker.calls[place] + 2
        tokens: list[Token] = []
        running = self.decoder.generate(prompt, count, self.caches, stop)
        try:
            for token in running:
                tokens.append(token)
                if self.dice.random() < 0.2:
                    self.decoder.settle()
                    reference.check_holds(
                        self.name, self.caches, [*before, *reference.ids_of(tokens)]
                    )
                if ending == "close" and self.dice.random() < 0.3:
                    running.close()
                    break
        except Broken:
            assert ending == "fault"
        self.ticker.place = ""
        reference.check_tokens(self.name, before, tokens)
        self.text = [*before, *reference.ids_of(tokens)]
        reference.check_holds(self.name, self.caches, self.text)
        assert self.decoder.pending is None
        assert self.decoder.stats.emitted_tokens == len(tokens)
        if stop and stop[0] in reference.ids_of(tokens):
            assert reference.ids_of(tokens).index(stop[0]) == len(tokens) - 1
            assert tokens[-1].finish_reason == "stop"


@pytest.mark.parametrize("seed", reference.sampled(range(300), 8))
def test_whatever_happens_the_text_and_the_caches_are_those_of_plain_decoding(seed: int) -> None:
    session = Session(seed)
    for turn in range(3):
        if turn and session.dice.random() < 0.25:
            session.decoder = session._decoder()
        session.turn()
