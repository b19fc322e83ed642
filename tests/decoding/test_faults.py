"""Whatever fails, and whenever: the caller sees why, and every cache holds the text."""

from __future__ import annotations

from itertools import product
from typing import Final

import pytest

from speculate.decoding.token import Token
from tests.decoding import kit
from tests.decoding.failing import COUNT, OWN, PLACES, TARGET, Failing, Kind, build, calls
from tests.decoding.watched import Broken, Ticker

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


@pytest.mark.parametrize("case", kit.sampled(CASES, 48))
def test_a_failure_leaves_caches_that_hold_the_text(
    case: tuple[tuple[str, Kind, str], str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    (name, kind, draft), place, when = case
    total = calls(name, kind, draft, monkeypatch).calls[place]
    at = 1 + round(when * (total - 1))
    error = KeyboardInterrupt("now") if at % 2 else Broken("now")
    ticker = Ticker(place, at, error)
    failing = build(name, kind, draft, ticker, monkeypatch)
    caches = kit.stock_caches(name)
    objects = list(caches)
    tokens: list[Token] = []
    with pytest.raises(type(error)) as caught:
        for token in failing.decoder.generate(kit.PROMPT, COUNT, caches):
            tokens.append(token)
    assert caught.value is error
    assert all(a is b for a, b in zip(caches, objects, strict=True))
    kit.check_tokens(name, kit.PROMPT, tokens)
    text = [] if ticker.calls["plan"] == 0 else [*kit.PROMPT, *kit.ids_of(tokens)]
    pending = failing.decoder.pending
    if place in TARGET and pending is not None:
        assert pending == text.pop()
    else:
        assert pending is None
    kit.check_holds(name, caches, text)
    # A proposer that was not told, or that failed while it caught up, is behind.
    behind = place == "commit" or ticker.before["settle"] > 0
    check_draft_cache(failing, draft, text, behind)
    check_goes_on(failing, name, caches, text, pending)


def check_draft_cache(failing: Failing, draft: str, text: list[int], behind: bool) -> None:
    """A cache that was handed over together with the target's ends at the same text."""
    layers = failing.draft_cache
    lengths = {layer.length() for layer in layers}
    if behind or not layers:
        assert all(length <= len(text) for length in lengths)
        return
    assert lengths == {len(text)}
    wanted = kit.cold(draft, tuple(text))[1] if text else kit.stock_caches(draft)
    pairs = zip(layers, wanted, strict=True)
    assert all(kit.equal(kit.content(a), kit.content(b)) for a, b in pairs)


def check_goes_on(
    failing: Failing, name: str, caches: list[object], text: list[int], pending: int | None
) -> None:
    """The next turn, and a new text, are as if nothing had happened."""
    turn = [*kit.SECOND] if pending is None else [pending, *kit.SECOND]
    second = list(failing.decoder.generate(turn, 3, caches))
    kit.check_tokens(name, [*text, *turn], second)
    kit.check_holds(name, caches, [*text, *turn, *kit.ids_of(second)])
    again = list(failing.decoder.generate(kit.PROMPT, 4))
    kit.check_tokens(name, kit.PROMPT, again)
