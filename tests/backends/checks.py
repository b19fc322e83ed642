"""What must hold of rewinding, as plain functions: a test feeds them models, or planted faults.

Every one raises `AssertionError` where the caches are wrong, and compares bit for bit.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence

import mlx.core as mx
from mlx_lm.models.cache import RotatingKVCache, trim_prompt_cache

from speculate import speculation
from speculate.backends.adoption import adopt
from speculate.errors import RewindError
from speculate.protocols import SpeculativeModel
from tests.backends.driving import (
    Caches,
    assert_equal,
    assert_same,
    cold,
    contents,
    feed,
    holding,
    ids,
    other,
    speculate_all,
    write,
)

Script = Sequence[tuple[int, int | None]]
"""Round by round: how many drafts, and which of them is wrong."""

LENGTHS = (4, 0, 1, 2, 7)
EVERY_MISTAKE: Script = [(drafts, wrong) for drafts in LENGTHS for wrong in [*range(drafts), None]]
"""Every draft length, wrong at every index and nowhere."""


def refused(call: Callable[..., object], *args: object) -> bool:
    """Whether a call raises `RewindError`."""
    try:
        call(*args)
    except RewindError:
        return True
    return False


def take_back(caches: Caches, n: int) -> None:
    """Take `n` tokens back as loops for mlx-lm do, and insist on all of them."""
    taken: object = trim_prompt_cache(list(caches), n)
    assert taken == n, f"took {taken} tokens back, not {n}"


def blocks_with(prefix: Sequence[int], width: int) -> list[list[int]]:
    """Two blocks of a width that have a prefix in common and nothing after it."""
    tail = ids(width - len(prefix), seed=91)
    return [[*prefix, *tail], [*prefix, *map(other, tail)]]


def check_tail_independence(
    driven: SpeculativeModel, prompt: int, widths: Iterable[int], *, singly: bool = False
) -> None:
    """Rewound to the prefix that they share, two blocks leave the same: a cold prefill's.

    Args:
        prompt: Tokens fed before.
        widths: Widths of the blocks; each is rewound to every prefix.
        singly: Feed a block token by token, so that records stack.
    """
    text, shared, newest = ids(prompt, seed=1), ids(9, seed=2), ids(1, seed=3)
    expected = []
    for m in range(10):
        caches = cold(driven, [*text, *shared[:m]])[1]
        expected.append((holding(caches), feed(driven, caches, newest)))
    caches = cold(driven, text)[1]
    speculate_all(caches)
    for width in widths:
        for m in range(width + 1):
            for block in blocks_with(shared[:m], width):
                for piece in [[token] for token in block] if singly else [block]:
                    feed(driven, caches, piece)
                take_back(caches, width - m)
                what = f"width {width} cut to {m}"
                assert_same(holding(caches), expected[m][0], what)
                assert_equal(feed(driven, caches, newest), expected[m][1], what)
                take_back(caches, m + 1)
    assert_same(holding(caches), expected[0][0], "taken back to the prompt")


def check_partial_rewinds(driven: SpeculativeModel) -> None:
    """One block is taken back bit by bit, and goes on from every place."""
    text, block, newest = ids(12, seed=1), ids(9, seed=2), ids(1, seed=3)
    caches = cold(driven, text)[1]
    speculate_all(caches)
    feed(driven, caches, block)
    left = len(block)
    for n in (4, 3, 1, 1):
        take_back(caches, n)
        left -= n
        fresh = cold(driven, [*text, *block[:left]])[1]
        assert_same(holding(caches), holding(fresh), f"{left} left")
        logits = feed(driven, fresh, newest)
        assert_equal(feed(driven, caches, newest), logits, f"{left} left")
        take_back(caches, 1)


def check_kept_prefixes(driven: SpeculativeModel, prompt: int, widths: Iterable[int]) -> None:
    """As `check_tail_independence`, by windows: the next logits are a cold prefill's."""
    text, shared, newest = ids(prompt, seed=1), ids(9, seed=2), ids(1, seed=3)
    expected = [cold(driven, [*text, *shared[:m], *newest])[0][-1] for m in range(10)]
    for width in widths:
        for m in range(width + 1):
            for block in blocks_with(shared[:m], width):
                caches = cold(driven, text)[1]
                with speculation(caches) as window:
                    feed(driven, caches, block)
                    window.keep(m)
                    logits = feed(driven, caches, newest)[-1]
                    assert_equal(logits, expected[m], f"width {width} kept {m}")


def check_rounds(
    driven: SpeculativeModel,
    text: Sequence[int],
    prompt: int,
    script: Script,
    *,
    caches: Caches | None = None,
    expected: mx.array | None = None,
    probe: bool = True,
    cold_end: bool = True,
) -> int:
    """Rounds of newest token, drafts and `keep`, as a decoder makes them.

    Args:
        text: What every round agrees with in the end.
        prompt: Tokens of it that are the prompt; all but the last are prefilled.
        script: The rounds.
        caches: Hold `text[:prompt - 1]` already.
        expected: Logits after each token of `text`; a cold prefill's if left out.
        probe: Compare the next logits after every round with a cold prefill too.
        cold_end: Compare those after the last round so.

    Returns:
        Tokens of the text that were kept.
    """
    done = prompt - 1
    if caches is None:
        caches = driven.make_cache()
        if done:
            feed(driven, caches, text[:done])
    if expected is None:
        expected = cold(driven, text)[0]
    with speculation(caches) as window:
        for index, (drafts, wrong) in enumerate(script):
            block = list(text[done : done + 1 + drafts])
            if wrong is not None:
                block[1 + wrong] = other(block[1 + wrong])
            good = 1 + (drafts if wrong is None else wrong)
            what = f"prompt {prompt}, round {index} ({drafts} drafts, wrong at {wrong})"
            logits = feed(driven, caches, block)
            assert_equal(logits[:good], expected[done : done + good], what)
            window.keep(good)
            done += good
            if probe:
                _check_next(driven, caches, text[: done + 1], what)
                window.keep(0)
        if cold_end:
            _check_next(driven, caches, text[: done + 1], f"prompt {prompt}, at the end")
            window.keep(0)
    return done


def _check_next(driven: SpeculativeModel, caches: Caches, text: Sequence[int], what: str) -> None:
    """The last token's logits are those of a cold prefill."""
    found = feed(driven, caches, text[-1:])
    assert_equal(found[-1], cold(driven, text)[0][-1], f"{what}, next logits")


def check_over_trim(driven: SpeculativeModel, prompt: int, too_many: int) -> None:
    """Taking back more than is possible raises and changes nothing in any layer.

    Args:
        prompt: Tokens fed before speculation, and three more in it.
        too_many: Tokens that some layer cannot take back.
    """
    caches = cold(driven, ids(prompt, seed=1))[1]
    speculate_all(caches)
    feed(driven, caches, ids(3, seed=2))
    before = holding(caches)
    for n in (too_many, prompt + 4, 10_000, -1):
        assert refused(trim_prompt_cache, list(caches), n), f"took {n} back"
        assert_same(holding(caches), before, f"after trim_prompt_cache of {n} was refused")
        for index, layer in enumerate(caches):
            assert refused(layer.trim, n), f"layer {index} took {n}"
            assert_same(holding(caches), before, f"after layer {index} refused {n}")
    take_back(caches, 3)
    expected = holding(cold(driven, ids(prompt, seed=1))[1])
    assert_same(holding(caches), expected, "taken back after refusals")


def check_hand_back(driven: SpeculativeModel, prompt: int, more: int) -> None:
    """What mlx-lm is handed has the rows of a cold prefill, however they came about."""
    text = ids(prompt + more, seed=1)
    caches = cold(driven, text[:prompt])[1]
    with speculation(caches) as window:
        feed(driven, caches, [*text[prompt:], *ids(4, seed=2)])
        window.keep(more)
    if all(layer.length() == len(text) for layer in caches):
        stock = [layer.hand_back() for layer in caches]
        fresh = cold(driven, text)[1]
        assert_same(holding(stock), holding(fresh), "handed back")
        assert [len(layer.arrays()) for layer in caches] == [0] * len(caches), "kept something"


def check_adopted_ring(keep: int = 0) -> None:
    """A ring that mlx-lm has wrapped is taken over in time order, and given back so."""
    for fed in (5, 8, 11, 16, 19):
        ring, newest = RotatingKVCache(max_size=8, keep=keep), mx.zeros((1, 1, 1, 2))
        for position in range(fed):
            newest = mx.full((1, 1, 1, 2), position)
            write(ring, newest)
        sinks = list(range(min(keep, fed)))
        rows = [*sinks, *range(max(len(sinks), fed - 8 + len(sinks)), fed)]
        (adopted,) = adopt([ring])
        taken_over = contents(adopted)[0]
        handed_back = contents(adopted.hand_back())[0]
        for held in (taken_over, handed_back):
            assert held is not None, f"nothing is held after {fed}"
            assert held[0, 0, :, 0].tolist() == rows, f"order of {fed} rows"


def check_small_hand_back(rows: int = 110) -> None:
    """A window that is handed back keeps alive its own rows, and not the whole buffer."""
    width = 64
    gc.disable()  # so that nothing else is freed meanwhile
    before = mx.get_active_memory()
    stock = RotatingKVCache(max_size=8)
    (cache,) = adopt([stock])
    assert isinstance(cache, RotatingKVCache)
    write(cache, mx.ones((1, 1, rows, width)))
    mx.eval(cache.state[:2])
    assert cache.hand_back() is stock
    mx.eval(stock.keys, stock.values)
    del cache
    held, needed = mx.get_active_memory() - before, 2 * 8 * width * 4
    gc.enable()
    assert stock.nbytes == needed
    assert held <= 2 * needed, f"{held} bytes are held for {needed}"


def check_sinks(driven: SpeculativeModel, size: int, prompt: int) -> None:
    """Blocks after a prefill see what single steps after the same prefill see."""
    text = ids(prompt + 80)

    def prefilled() -> Caches:
        caches = driven.make_cache(size)
        assert all(isinstance(c, RotatingKVCache) and c.keep == 4 for c in caches), "no sinks"
        if prompt > 1:
            feed(driven, caches, text[: prompt - 1])
        return caches

    stepped = prefilled()
    rows = [feed(driven, stepped, [token]) for token in text[prompt - 1 :]]
    expected = mx.concatenate([mx.zeros((prompt - 1, rows[0].shape[1])), *rows])
    check_rounds(
        driven,
        text,
        prompt,
        EVERY_MISTAKE,
        caches=prefilled(),
        expected=expected,
        probe=False,
        cold_end=False,
    )
