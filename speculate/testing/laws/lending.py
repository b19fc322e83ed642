"""What a cache must do when it is adopted, handed back, or used in another thread."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, cast

import mlx.core as mx
from typing_extensions import Protocol

from speculate.errors import SpeculateError
from speculate.testing.broken import law, require
from speculate.testing.feeding import Fed
from speculate.testing.kinds import CacheKind, forward, run

ROWS: Final = 700
"""Fed before a cache is weighed."""

SHARED: Final = 20_000
"""Bytes of a larger buffer that MLX may keep for each array rather than copy it."""


class StockCache(Protocol):
    """What every cache of mlx-lm can tell."""

    @property
    def state(self) -> object:
        """Its arrays."""

    @property
    def nbytes(self) -> int:
        """Bytes of all its arrays."""

    def empty(self) -> bool:
        """Whether it holds nothing."""


@law
def mlx_lm_goes_on_where_a_cache_stopped(kind: CacheKind) -> None:
    """`hand_back` gives the text and nothing else, whatever was taken back before."""
    for prompt in (0, 3, 40):
        for right, wrong in ((0, 0), (1, 0), (0, 4), (5, 0)):
            fed = Fed(kind, prompt)
            fed.start()
            fed.round(right, wrong)
            stock = fed.hand_back()
            for position in range(fed.length, fed.length + 3):
                tokens = mx.array([[kind.text(position + 1)[-1]]])
                found = run(kind.layers, stock, tokens)
                same = bool(mx.array_equal(found, kind.expected(position, position + 1)))
                require(
                    same, f"position {position}: mlx-lm's layer sees other rows than the text's"
                )


@law
def adopting_and_handing_back_move_the_text(kind: CacheKind) -> None:
    """The same objects come back, filled, and in between they are empty."""
    for prompt in (0, 7, 12):
        fed = Fed(kind, prompt)
        stock = fed.hand_back()
        for _ in range(3):
            fed.go_on_with(kind.adopt(stock))
            emptied = all(cast(StockCache, cache).empty() for cache in stock)
            require(emptied, "what was adopted still holds the rows, too")
            fed.start()
            fed.round(2, 3)
            fed.feed(1)
            back = fed.hand_back()
            same = all(one is other for one, other in zip(back, stock, strict=True))
            require(same, "hand_back gives another object than the one that was adopted")


@law
def a_text_is_adopted_however_mlx_lm_fed_it(kind: CacheKind) -> None:
    """Token by token, around a window once or twice, or in chunks of any size."""
    for widths in ((1,) * 5, (1,) * 8, (1,) * 11, (1,) * 19, (12, 1, 1), (1,) * 11 + (4,), (20,)):
        fed = Fed(kind)
        stock = fed.hand_back()
        for width in widths:
            text = kind.text(fed.length + width)
            run(kind.layers, stock, mx.array([text[fed.length :]]))
            fed.length = fed.right = fed.length + width
        fed.go_on_with(kind.adopt(stock))
        fed.start()
        for _ in range(4):
            fed.round(1, 3)
            fed.feed(2)


@law
def no_buffer_stays_alive_behind_what_is_handed_back(kind: CacheKind) -> None:
    """mlx-lm's cache holds its own rows, and no view of a larger buffer."""
    gc.collect()
    before = mx.get_active_memory()
    fed = Fed(kind)
    fed.feed(0, ROWS)
    fed.start()
    fed.feed(0, 1)
    arrays = sum(len(cache.arrays()) for cache in fed.caches)
    stock = fed.hand_back()
    mx.eval([cast(StockCache, cache).state for cache in stock])
    del fed
    gc.collect()
    held = mx.get_active_memory() - before
    needed = sum(cast(StockCache, cache).nbytes for cache in stock)
    most = needed + SHARED * arrays
    require(held <= most, f"{held} bytes stay alive for {needed} bytes of rows")


@law
def arrays_are_all_that_a_cache_holds(kind: CacheKind) -> None:
    """Once they are evaluated nothing lazy is left, which no other thread could evaluate."""
    fed = Fed(kind, 12)
    fed.start()
    fed.round(2, 3)
    fed.feed(0, 1)
    mx.eval([cache.arrays() for cache in fed.caches])
    failures: list[BaseException] = []

    def go_on() -> None:
        try:
            mx.eval(forward(kind.layers, fed.caches, mx.array([[1]])))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=go_on)
    thread.start()
    thread.join()
    require(not failures, f"another thread cannot go on: {failures}")


@law
def a_saved_cache_can_be_loaded_or_is_not_saved(kind: CacheKind) -> None:
    """mlx-lm's `save_prompt_cache` raises, or writes what `load_prompt_cache` reads."""
    # Only here, since nothing else of the kit needs mlx-lm itself.
    from mlx_lm.models.cache import load_prompt_cache, save_prompt_cache

    for prompt in (0, 12):
        fed = Fed(kind, prompt)
        fed.start()
        with TemporaryDirectory() as folder:
            file = str(Path(folder) / "prompt.safetensors")
            try:
                save_prompt_cache(file, fed.caches)
            except (SpeculateError, ValueError):
                # As loops written for mlx-lm do after each chunk of a prompt.
                mx.eval([cast(StockCache, cache).state for cache in fed.caches])
                fed.round(2, 3)
                continue
            stock = load_prompt_cache(file)
        found = run(kind.layers, stock, mx.array([[kind.text(prompt + 1)[-1]]]))
        same = bool(mx.array_equal(found, kind.expected(prompt, prompt + 1)))
        require(same, "what was saved and loaded again holds other rows than the text's")
