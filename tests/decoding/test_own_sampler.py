"""A sampler of one's own: the decoder drives it, checks its answers, and copies nothing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, cast

import mlx.core as mx
import pytest

import speculate as sp
from speculate.errors import OptionError
from speculate.protocols import Draft, DraftToken, Proposer, Sampler, Strategy, Verification
from speculate.testing import ScheduledStrategy, ScriptedProposer, ToyModel
from tests.support import reference, tokenizers

COUNT: Final = 30
WRONG: Final = (None, 0, 1, 2, 3)


class Ranked:
    """Picks the most likely token, the second or the third, by turns of position."""

    def __init__(self, ahead: bool = True) -> None:
        self.ahead = ahead
        self.begun: list[tuple[list[int], int, set[int]]] = []
        self.kept: list[int] = []
        self.unread = 0
        self._position = -1

    @property
    def supports_lookahead(self) -> bool:
        return self.ahead

    def begin(self, history: Sequence[int], position: int, stop_tokens: Collection[int], /) -> None:
        self.begun.append((list(history), position, set(stop_tokens)))
        self.kept = []
        self._position = position

    def choose(self, logits: mx.array, index: int, /) -> DraftToken:
        return DraftToken(self._pick(logits, self._position + 1 + index))

    def verify(self, last_token: mx.array, draft: Draft, logits: mx.array, /) -> Verification:
        own = self._pick(logits, self._position + 1)
        k = draft.tokens.shape[0]
        right = mx.cumprod((own[:k] == draft.tokens).astype(mx.int32)).sum().astype(mx.int32)
        return Verification(right, own, logits)

    def commit(self, tokens: mx.array, /) -> None:
        self.kept += cast("list[int]", tokens.tolist())
        self._position += tokens.shape[0]

    def _pick(self, logits: mx.array, first: int) -> mx.array:
        ranks = mx.array([[(first + row) % 3] for row in range(logits.shape[0])])
        return mx.take_along_axis(mx.argsort(-logits, axis=-1), ranks, axis=-1)[:, 0]


def by_hand(model: ToyModel, prompt: Sequence[int], count: int) -> list[int]:
    """The same rule without a cache, a decoder or a sampler."""
    text = list(prompt)
    for _ in range(count):
        logits = model.forward(mx.array([text]), model.make_cache()).logits[0, -1]
        ranked = cast("list[int]", mx.argsort(-logits).tolist())
        text.append(ranked[len(text) % 3])
    return text[len(prompt) :]


MODEL: Final = ToyModel()
PLAIN: Final = by_hand(MODEL, reference.PROMPT, COUNT)


def scripted(wrong: int | None = None, name: str = "scripted") -> ScriptedProposer:
    return ScriptedProposer([*reference.PROMPT, *PLAIN], lambda _: wrong, vocab_size=64, name=name)


def mixed() -> Strategy:
    """Another proposer in every round, or none; drafts of every depth, wrong everywhere."""
    pool: list[Proposer] = [scripted(wrong, f"wrong at {wrong}") for wrong in WRONG]
    pool.append(sp.DraftModel(ToyModel(1)))
    pool.append(sp.PromptLookup())
    return ScheduledStrategy([(p, depth) for depth in (3, 0, 1, 5) for p in pool])


def decode(sampler: Any, strategy: Strategy | None = None, count: int = COUNT) -> list[int]:
    decoder = sp.Decoder(MODEL, sp.Off() if strategy is None else strategy, sampler)
    return reference.ids_of(decoder.generate(reference.PROMPT, count))


# What it chooses is the text.


@pytest.mark.parametrize("ahead", [True, False])
def test_plain_decoding_gives_the_sampler_s_tokens(ahead: bool) -> None:
    assert decode(Ranked(ahead)) == PLAIN
    assert len(set(PLAIN)) > 5


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("wrong", [*WRONG, "a draft model", "everyone"])
def test_the_text_is_the_same_with_drafts(wrong: object, ahead: bool) -> None:
    strategies: dict[object, Strategy] = {
        "a draft model": sp.Fixed(sp.DraftModel(ToyModel(1)), 3),
        "everyone": mixed(),
    }
    script = scripted(wrong if isinstance(wrong, int) else None)
    assert decode(Ranked(ahead), strategies.get(wrong, sp.Fixed(script, 4))) == PLAIN


def test_right_drafts_are_accepted() -> None:
    decoder = sp.Decoder(MODEL, sp.Fixed(scripted(), 4), Ranked())
    assert reference.ids_of(decoder.generate(reference.PROMPT, COUNT)) == PLAIN
    assert decoder.stats.accepted_tokens == decoder.stats.draft_tokens > 20


def test_its_own_model_drafts_what_it_chooses() -> None:
    decoder = sp.Decoder(MODEL, sp.Fixed(sp.DraftModel(MODEL), 3), Ranked())
    assert reference.ids_of(decoder.generate(reference.PROMPT, COUNT)) == PLAIN
    assert decoder.stats.accepted_tokens == decoder.stats.draft_tokens > 15


@pytest.mark.parametrize("ahead", [True, False])
def test_it_is_given_whole_sequences_in_order(ahead: bool) -> None:
    sampler = Ranked(ahead)
    decoder = sp.Decoder(MODEL, mixed(), sampler)
    caches = cast("list[object]", list(MODEL.make_cache()))
    first = reference.ids_of(
        decoder.generate(reference.PROMPT, 12, caches, stop_tokens=[63], history=[7, 7])
    )
    assert first == PLAIN[:12]
    assert sampler.begun == [([7, 7, *reference.PROMPT[:-1]], len(reference.PROMPT) - 1, {63})]
    # The last token is fed at the end of a run.
    assert sampler.kept == [reference.PROMPT[-1], *first]
    second = reference.ids_of(decoder.generate([5], 9, caches, history=[*reference.PROMPT, *first]))
    text = [*reference.PROMPT, *first, 5]
    assert second == by_hand(MODEL, text, 9)
    assert sampler.begun[1:] == [(text[:-1], len(text) - 1, set())]
    assert sampler.kept == [5, *second]


def test_two_sequences_in_a_row_are_equal() -> None:
    sampler = Ranked()
    decoder = sp.Decoder(MODEL, mixed(), sampler)
    running = decoder.generate(reference.PROMPT, COUNT)
    assert [next(running).id for _ in range(7)] == PLAIN[:7]
    running.close()
    for _ in range(2):
        assert reference.ids_of(decoder.generate(reference.PROMPT, COUNT)) == PLAIN
    assert [position for _, position, _ in sampler.begun] == [len(reference.PROMPT) - 1] * 3


@pytest.mark.parametrize("depth", [0, 4])
def test_the_text_goes_on_after_settle(depth: int) -> None:
    sampler = Ranked()
    decoder = sp.Decoder(MODEL, sp.Fixed(scripted(2), depth), sampler)
    running = decoder.generate(reference.PROMPT, COUNT)
    found: list[int] = []
    for token in running:
        found.append(token.id)
        decoder.settle()
        assert sampler.kept == [reference.PROMPT[-1], *found]
    assert found == PLAIN


class Reading(Ranked):
    """Reads the last token in `verify`, as a sampler that keeps a state by tokens may."""

    def __init__(self, ahead: bool) -> None:
        super().__init__(ahead)
        self.read: list[int] = []

    def verify(self, last_token: mx.array, draft: Draft, logits: mx.array, /) -> Verification:
        self.read.append(cast(int, last_token.item()))
        return super().verify(last_token, draft, logits)


def test_without_lookahead_only_emitted_tokens_are_passed_to_verify() -> None:
    sampler = Reading(ahead=False)
    decoder = sp.Decoder(MODEL, sp.Off(), sampler)
    found: list[int] = []
    for token in decoder.generate(reference.PROMPT, COUNT):
        assert sampler.read == [reference.PROMPT[-1], *found]
        found.append(token.id)
    ahead = Reading(ahead=True)
    next(sp.Decoder(MODEL, sp.Off(), ahead).generate(reference.PROMPT, COUNT))
    assert ahead.read == [reference.PROMPT[-1], PLAIN[0]]


def test_there_is_no_seed() -> None:
    decoder = sp.Decoder(MODEL, sp.Off(), Ranked())
    list(decoder.generate(reference.PROMPT, 3))
    assert decoder.stats.seed is None


def test_log_probabilities_are_of_its_logits() -> None:
    decoder = sp.Decoder(MODEL, sp.Fixed(scripted(2), 4), Ranked())
    tokens = list(decoder.generate(reference.PROMPT, 9))
    text = [*reference.PROMPT, *PLAIN[:9]]
    want = reference.logprobs(MODEL.forward(mx.array([text]), MODEL.make_cache()).logits[0])
    assert mx.array_equal(
        mx.stack([t.logprobs for t in tokens]), want[len(reference.PROMPT) - 1 : -1]
    )


def test_text_in_text_out() -> None:
    model = reference.get("dense").model
    tokenizer = tokenizers.wrapper()
    plain = reference.ids_of(sp.Decoder(model, sp.Off(), Ranked()).generate(reference.PROMPT, 12))
    strategy = sp.Fixed(sp.DraftModel(model), 3)
    for chosen in (None, sp.Off(), strategy):
        responses = sp.stream_generate(
            model, tokenizer, reference.PROMPT, max_tokens=12, strategy=chosen, sampling=Ranked()
        )
        assert [response.token for response in responses] == plain
        text = sp.generate(
            model, tokenizer, reference.PROMPT, max_tokens=12, strategy=chosen, sampling=Ranked()
        )
        assert text == tokenizers.decoded(plain)


# What is refused.


def test_it_is_told_from_a_callable() -> None:
    class Both(Ranked):
        def __call__(self, logprobs: mx.array) -> mx.array:
            raise AssertionError("called as mlx-lm's")

    assert isinstance(Both(), Sampler)
    assert not isinstance(mx.argmax, Sampler)
    assert decode(Both()) == PLAIN


def test_processors_beside_it_are_refused() -> None:
    with pytest.raises(OptionError, match=r"logits_processors .*Ranked.*verify\(\)"):
        sp.Decoder(MODEL, sp.Off(), Ranked(), [lambda tokens, logits: logits])
    sp.Decoder(MODEL, sp.Off(), Ranked(), [])


def test_a_class_is_refused() -> None:
    with pytest.raises(OptionError, match="sampling: Ranked is a class: pass an instance"):
        sp.Decoder(MODEL, sampling=cast(Any, Ranked))


def test_half_a_sampler_is_refused_by_what_it_lacks() -> None:
    class Half:
        supports_lookahead = True

        def begin(self, *_: object) -> None: ...

        def verify(self, *_: object) -> None: ...

    with pytest.raises(OptionError, match=r"sampling: Half .*choose, commit"):
        sp.Decoder(MODEL, sampling=cast(Any, Half()))


LOGITS: Final = mx.zeros((3, 64))
OWN: Final = mx.array([1, 2, 3])
ONE: Final = mx.array(1, dtype=mx.int32)
DECISIONS: Final[dict[str, tuple[object, str]]] = {
    "nothing": (None, "returned a NoneType, not a Verification"),
    "a tuple": ((ONE, OWN), "returned a tuple, not a Verification"),
    "a number": (Verification(cast(Any, 1), OWN, LOGITS), "accepted is an int"),
    "a row": (Verification(ONE[None], OWN, LOGITS), r"accepted is \(1,\) int32"),
    "a fraction": (Verification(mx.array(1.0), OWN, LOGITS), r"accepted is \(\) float32"),
    "a truth": (Verification(mx.array(True), OWN, LOGITS), r"accepted is \(\) bool"),
    "a list": (Verification(ONE, cast(Any, [1, 2, 3]), LOGITS), "tokens is a list"),
    "too few": (Verification(ONE, OWN[:2], LOGITS), r"tokens is \(2,\) int32, not \(3,\)"),
    "too many": (Verification(ONE, mx.arange(4), LOGITS), r"tokens is \(4,\) int32, not \(3,\)"),
    "a column": (Verification(ONE, OWN[:, None], LOGITS), r"tokens is \(3, 1\) int32"),
    "scores": (Verification(ONE, OWN.astype(mx.float32), LOGITS), r"tokens is \(3,\) float32"),
    "no logits": (Verification(ONE, OWN, cast(Any, None)), "logits is a NoneType"),
    "other logits": (Verification(ONE, OWN, LOGITS[:, :5]), r"logits is \(3, 5\)"),
    "one row": (Verification(ONE, OWN, LOGITS[0]), r"logits is \(64,\)"),
    "more logits": (Verification(ONE, OWN, mx.zeros((4, 64))), r"logits is \(4, 64\)"),
    "too many accepted": (Verification(ONE + 2, OWN, LOGITS), "accepted 3 of 2 drafts"),
    "less than none": (Verification(ONE - 2, OWN, LOGITS), "accepted -1 of 2 drafts"),
    "no id": (Verification(ONE, OWN + 64, LOGITS), "token 66, .*vocabulary of 64"),
    "below 0": (Verification(ONE, OWN - 9, LOGITS), "token -7, .*vocabulary of 64"),
}


class Answering(Ranked):
    """Gives a wrong answer in the third round."""

    def __init__(self, verification: object = None, choice: object = None) -> None:
        super().__init__(ahead=False)
        self.rounds = 0
        self._answer, self._choice = verification, choice

    def choose(self, logits: mx.array, index: int, /) -> DraftToken:
        return cast(DraftToken, self._choice)

    def verify(self, last_token: mx.array, draft: Draft, logits: mx.array, /) -> Verification:
        self.rounds += 1
        if self.rounds == 3:
            return cast(Verification, self._answer)
        return super().verify(last_token, draft, logits)


@pytest.mark.parametrize("name", DECISIONS)
def test_a_wrong_decision_is_an_error_and_the_text_before_it_stays(name: str) -> None:
    verification, said = DECISIONS[name]
    decoder = sp.Decoder(MODEL, sp.Fixed(scripted(1), 2), Answering(verification))
    caches = cast("list[object]", list(MODEL.make_cache()))
    found: list[int] = []
    with pytest.raises(sp.SpeculateError, match=said) as caught:
        for token in decoder.generate(reference.PROMPT, COUNT, caches):
            found.append(token.id)
    assert "Answering" in str(caught.value)
    assert found == PLAIN[:4]
    # The list holds the text so far, and can be decoded further.
    follows = by_hand(MODEL, [*reference.PROMPT, *found, 5], 6)
    again = sp.Decoder(MODEL, sp.Off(), Ranked())
    assert reference.ids_of(again.generate([5], 6, caches)) == follows


@pytest.mark.parametrize(
    "verification", [Verification(ONE * 0, OWN, LOGITS[:1]), Verification(ONE, OWN, LOGITS)]
)
def test_a_round_without_drafts_has_one_token(verification: Verification) -> None:
    with pytest.raises(sp.SpeculateError, match=r"Answering.*tokens is \(3,\) int32, not \(1,\)"):
        decode(Answering(verification))


CHOICES: Final[dict[str, tuple[object, str]]] = {
    "an array": (mx.array([3]), "returned an array, not a DraftToken"),
    "no row": (DraftToken(mx.array(3)), r"token is \(\) int32, not \(1,\)"),
    "a score": (DraftToken(mx.array([0.5])), r"token is \(1,\) float32"),
    "a flat row": (DraftToken(mx.array([3]), mx.zeros((64,))), r"log-probabilities is \(64,\)"),
    "a number": (DraftToken(cast(Any, 3)), "token is an int"),
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_wrong_choice_is_an_error_of_the_sampler(name: str) -> None:
    choice, said = CHOICES[name]
    strategy = sp.Fixed(sp.DraftModel(ToyModel(1)), 2)
    with pytest.raises(sp.SpeculateError, match=rf"Answering\.choose\(\).*{said}"):
        decode(Answering(choice=choice), strategy)


def test_lookahead_is_yes_or_no() -> None:
    class Method(Ranked):
        def supports_lookahead(self) -> bool:  # type: ignore[override]
            return False

    with pytest.raises(sp.SpeculateError, match=r"Method\.supports_lookahead"):
        decode(Method())
