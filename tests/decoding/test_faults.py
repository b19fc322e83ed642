"""Whatever fails, and whenever: the caller sees why, and every cache holds the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Final

import mlx.core as mx
import pytest

from speculate import Decoder, DraftModel, Fixed, Off, Token
from speculate.protocols import Forward, Rollbackable
from tests.support import reference
from tests.support.failing_runs import COUNT, OWN, PLACES, TARGET, Failing, Kind, build, calls
from tests.support.recording import Broken, GuidedModel, PassingModel, Ticker

SETUPS: Final[tuple[tuple[str, Kind, str], ...]] = (
    ("qwen3_5", "draft", "small_dense"),
    ("gpt_oss", "draft", "gpt_oss"),
    ("dense", "draft", "qwen3_5"),
    ("lfm2", "draft", "lfm2"),
    ("qwen3_5", "head", ""),
    ("gpt_oss", "head", ""),
)
WHEN: Final = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
CASES: Final = [
    (setup, place, when)
    for setup in SETUPS
    for place, when in product((*PLACES, *OWN[setup[1]]), WHEN)
]


@pytest.mark.parametrize("case", reference.sampled(CASES, 30))
def test_a_failure_leaves_caches_that_hold_the_text(
    case: tuple[tuple[str, Kind, str], str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    (name, kind, draft), place, when = case
    total = calls(name, kind, draft, monkeypatch)[place]
    at = 1 + round(when * (total - 1))
    error = KeyboardInterrupt("now") if at % 2 else Broken("now")
    ticker = Ticker(place, at, error)
    failing = build(name, kind, draft, ticker, monkeypatch)
    caches = reference.stock_caches(name)
    objects = list(caches)
    tokens: list[Token] = []
    with pytest.raises(type(error)) as caught:
        for token in failing.decoder.generate(reference.PROMPT, COUNT, caches):
            tokens.append(token)
    assert caught.value is error
    assert all(a is b for a, b in zip(caches, objects, strict=True))
    reference.check_tokens(name, reference.PROMPT, tokens)
    text = [] if ticker.calls["plan"] == 0 else [*reference.PROMPT, *reference.ids_of(tokens)]
    pending = failing.decoder.pending
    if place in TARGET and pending is not None:
        assert pending == text.pop()
    else:
        assert pending is None
    reference.check_holds(name, caches, text)
    # A proposer that was not told, or that failed while it caught up, is behind.
    has_backlog = place == "commit" or ticker.before["settle"] > 0
    check_draft_cache(failing, draft, text, has_backlog)
    check_goes_on(failing, name, caches, text, pending)


def check_draft_cache(failing: Failing, draft: str, text: list[int], has_backlog: bool) -> None:
    """A cache that was handed over together with the target's ends at the same text."""
    layers = failing.draft_cache
    lengths = {layer.length() for layer in layers}
    if has_backlog or not layers:
        assert all(length <= len(text) for length in lengths)
        return
    assert lengths == {len(text)}
    wanted = reference.cold(draft, tuple(text))[1] if text else reference.stock_caches(draft)
    pairs = zip(layers, wanted, strict=True)
    assert all(reference.equal(reference.content(a), reference.content(b)) for a, b in pairs)


def check_goes_on(
    failing: Failing, name: str, caches: list[object], text: list[int], pending: int | None
) -> None:
    """The next turn, and a new text, are as if nothing had happened."""
    turn = [*reference.SECOND] if pending is None else [pending, *reference.SECOND]
    second = list(failing.decoder.generate(turn, 3, caches))
    reference.check_tokens(name, [*text, *turn], second)
    reference.check_holds(name, caches, [*text, *turn, *reference.ids_of(second)])
    again = list(failing.decoder.generate(reference.PROMPT, 4))
    reference.check_tokens(name, reference.PROMPT, again)


class Interrupting:
    """A layer's MLP that fails at one of its calls, when other layers have consumed already."""

    def __init__(self, mlp: Callable[[mx.array], mx.array], at: int) -> None:
        self._mlp = mlp
        self._left = at

    def __call__(self, x: mx.array) -> mx.array:
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt
        return self._mlp(x)


@pytest.mark.parametrize("at", reference.sampled(range(1, 9), 3))
@pytest.mark.parametrize("name", reference.PROMISED)
def test_a_forward_that_fails_between_two_layers_consumed_nothing(name: str, at: int) -> None:
    # A model of its own, since a part of it is replaced.
    broken = reference.adapted(reference.BUILDERS[name]())
    layer = broken.stock.layers[2]
    proposer = reference.scripted(name, reference.PROMPT, COUNT, reference.always("each"))
    decoder = Decoder(broken.model, Fixed(proposer, 3), prefill_step_size=3)
    mlp = layer.mlp  # type: ignore[attr-defined]
    layer.mlp = Interrupting(mlp, at)  # type: ignore[attr-defined]
    caches = reference.stock_caches(name)
    tokens: list[Token] = []
    with pytest.raises(KeyboardInterrupt):
        for token in decoder.generate(reference.PROMPT, COUNT, caches):
            tokens.append(token)
    pending = decoder.pending
    text = [*reference.PROMPT, *reference.ids_of(tokens)] if at > 2 else []
    if pending is not None:
        assert text.pop() == pending
    reference.check_holds(name, caches, text)
    turn = [*reference.SECOND] if pending is None else [pending, *reference.SECOND]
    second = list(decoder.generate(turn, 3, caches))
    reference.check_tokens(name, [*text, *turn], second)


@pytest.mark.parametrize("left", [16, 17, 18, 19, 20, 21])
def test_a_draft_that_fails_near_the_end_trims_no_more_than_it_drafted(left: int) -> None:
    text = [*reference.PROMPT, *reference.truth("dense", reference.PROMPT, 16)]
    error = Broken("the draft model's own limit")

    class Limited(PassingModel):
        """Fails when its cache would hold more than it can."""

        def forward(
            self, tokens: mx.array, cache: Sequence[object], /, *, taps: Sequence[int] = ()
        ) -> Forward:
            layers = [layer for layer in cache if isinstance(layer, Rollbackable)]
            if layers[0].length() + tokens.shape[1] > left:
                raise error
            return self.inner.forward(tokens, cache)

    small = GuidedModel(Limited(reference.get("small_dense").model), text)
    draft_cache = small.make_cache()
    decoder = Decoder(reference.get("dense").model, Fixed(DraftModel(small, cache=draft_cache), 4))
    caches = reference.stock_caches("dense")
    tokens: list[Token] = []
    with pytest.raises(Broken) as caught:
        for token in decoder.generate(reference.PROMPT, 16, caches):
            tokens.append(token)
    assert caught.value is error
    reference.check_tokens("dense", reference.PROMPT, tokens)
    fed = [*reference.PROMPT, *reference.ids_of(tokens)]
    reference.check_holds("dense", caches, fed)
    assert draft_cache[0].length() <= len(fed)
    second = list(
        Decoder(reference.get("dense").model, Off()).generate(reference.SECOND, 4, caches)
    )
    reference.check_tokens("dense", [*fed, *reference.SECOND], second)


@pytest.mark.parametrize("name", ["qwen3_5", "gpt_oss", "lfm2"])
@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_a_long_prefill_that_is_broken_off_leaves_what_was_there(name: str, chunk: int) -> None:
    caches = reference.stock_caches(name)
    draft = DraftModel(reference.get(name).model)
    seen: list[int] = []

    def stop(done: int, total: int) -> None:
        seen.append(done)
        if len(seen) == chunk + 1:
            raise KeyboardInterrupt

    reference.feed(name, caches, reference.PROMPT)
    model = reference.get(name).model
    prompt = reference.text_of(20)
    decoder = Decoder(model, Fixed(draft, 3), prefill_step_size=6, prompt_progress_callback=stop)
    with pytest.raises(KeyboardInterrupt):
        list(decoder.generate(prompt, 5, caches))
    reference.check_holds(name, caches, reference.PROMPT)
    tokens = list(decoder.generate(prompt, 5, caches))
    reference.check_tokens(name, [*reference.PROMPT, *prompt], tokens)
    assert draft.position() == len(reference.PROMPT) + 25
