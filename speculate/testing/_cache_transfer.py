"""Contracts of a cache on moving its content: adopting, releasing, saving, other threads."""

from __future__ import annotations

import gc
import threading
from abc import ABC, abstractmethod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, cast

import mlx.core as mx
from typing_extensions import Protocol

from speculate.errors import SpeculateError
from speculate.testing._cache_harness import CacheRun, CacheSpec
from speculate.testing.contract import contract, require
from speculate.testing.layers import forward, run_layers

ROWS: Final = 700
"""Tokens fed before the memory of a cache is measured."""

SHARED_BYTES: Final = 20_000
"""Bytes of a larger buffer that MLX may keep alive per array instead of copying."""


class StockCache(Protocol):
    """What every cache of mlx-lm reports."""

    @property
    def state(self) -> object:
        """Its arrays."""

    @property
    def nbytes(self) -> int:
        """Bytes of all its arrays."""

    def empty(self) -> bool:
        """Whether it holds nothing."""


def all_empty(caches: list[object]) -> bool:
    """Whether mlx-lm's caches hold nothing."""
    return all(cast(StockCache, cache).empty() for cache in caches)


class CacheTransferTests(ABC):
    """The part of `CacheTests` on moving content between caches, files and threads."""

    @abstractmethod
    def spec(self) -> CacheSpec:
        """What the contracts drive."""

    @contract
    def test_mlx_lm_continues_from_a_cache(self) -> None:
        """`hand_back` returns the sequence and nothing else, whatever was trimmed before."""
        spec = self.spec()
        for prompt in (0, 3, 40):
            for right, wrong in ((0, 0), (1, 0), (0, 4), (5, 0)):
                run = CacheRun(spec, prompt)
                run.start()
                run.round(right, wrong)
                stock = run.hand_back()
                for position in range(run.length, run.length + 3):
                    tokens = mx.array([[spec.sequence(position + 1)[-1]]])
                    found = run_layers(spec.layers, stock, tokens)
                    same = bool(mx.array_equal(found, spec.expected(position, position + 1)))
                    require(same, f"position {position}: mlx-lm's layer sees other rows")

    @contract
    def test_adopting_and_handing_back_move_the_content(self) -> None:
        """The same objects are returned, filled; in between they are empty."""
        spec = self.spec()
        for prompt in (0, 7, 12):
            run = CacheRun(spec, prompt)
            stock = run.hand_back()
            for _ in range(3):
                run.continue_with(spec.adopt(stock))
                require(all_empty(stock), "an adopted cache still holds the rows, too")
                run.start()
                run.round(2, 3)
                run.feed(1)
                back = run.hand_back()
                same = all(one is other for one, other in zip(back, stock, strict=True))
                require(same, "hand_back returns another object than the one that was adopted")

    @contract
    def test_caches_prefilled_by_mlx_lm_in_any_way_are_adopted(self) -> None:
        """Tokens may come one by one, around a window once or twice, or in chunks of any size."""
        spec = self.spec()
        one = (1,)
        for widths in (one * 5, one * 8, one * 11, one * 19, (12, 1, 1), (*one * 11, 4), (20,)):
            run = CacheRun(spec)
            stock = run.hand_back()
            for width in widths:
                tokens = spec.sequence(run.length + width)[run.length :]
                run_layers(spec.layers, stock, mx.array([tokens]))
                run.length = run.right = run.length + width
            run.continue_with(spec.adopt(stock))
            run.start()
            for _ in range(4):
                run.round(1, 3)
                run.feed(2)

    @contract
    def test_a_cache_handed_back_keeps_no_larger_buffer_alive(self) -> None:
        """mlx-lm's cache holds its own rows, and no view of a larger buffer."""
        spec = self.spec()
        gc.collect()
        before = mx.get_active_memory()
        run = CacheRun(spec)
        run.feed(0, ROWS)
        run.start()
        run.feed(0, 1)
        arrays = sum(len(cache.arrays()) for cache in run.caches)
        stock = run.hand_back()
        mx.eval([cast(StockCache, cache).state for cache in stock])
        del run
        gc.collect()
        held = mx.get_active_memory() - before
        needed = sum(cast(StockCache, cache).nbytes for cache in stock)
        limit = needed + SHARED_BYTES * arrays
        require(held <= limit, f"{held} bytes stay alive for {needed} bytes of rows")

    @contract
    def test_arrays_lists_everything_a_cache_holds(self) -> None:
        """Once `arrays` is evaluated, nothing lazy is left that another thread cannot evaluate."""
        spec = self.spec()
        run = CacheRun(spec, 12)
        run.start()
        run.round(2, 3)
        run.feed(0, 1)
        mx.eval([cache.arrays() for cache in run.caches])
        failures: list[BaseException] = []

        def feed_elsewhere() -> None:
            try:
                mx.eval(forward(spec.layers, run.caches, mx.array([[1]])))
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=feed_elsewhere)
        thread.start()
        thread.join()
        require(not failures, f"another thread cannot continue: {failures}")

    @contract
    def test_a_cache_is_saved_loadably_or_not_at_all(self) -> None:
        """mlx-lm's `save_prompt_cache` raises, or writes what `load_prompt_cache` reads."""
        # Imported here because nothing else in the kit needs mlx-lm.
        from mlx_lm.models.cache import load_prompt_cache, save_prompt_cache

        spec = self.spec()
        for prompt in (0, 12):
            run = CacheRun(spec, prompt)
            run.start()
            with TemporaryDirectory() as folder:
                file = str(Path(folder) / "prompt.safetensors")
                try:
                    save_prompt_cache(file, run.caches)
                except (SpeculateError, ValueError):
                    # Loops written for mlx-lm evaluate this after each chunk of a prompt.
                    mx.eval([cast(StockCache, cache).state for cache in run.caches])
                    run.round(2, 3)
                    continue
                stock = load_prompt_cache(file)
            found = run_layers(spec.layers, stock, mx.array([[spec.sequence(prompt + 1)[-1]]]))
            same = bool(mx.array_equal(found, spec.expected(prompt, prompt + 1)))
            require(same, "a cache that was saved and loaded holds other rows")
