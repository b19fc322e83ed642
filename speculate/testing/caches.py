"""`CacheTests`: the contracts of `Rollbackable`, for authors of cache backends."""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import mlx.core as mx

from speculate._mx import arrays_of
from speculate.backends.base import BaseCache
from speculate.backends.group import Grouped, group_of, join
from speculate.errors import SpeculateError
from speculate.protocols import Rollbackable, Trimmable
from speculate.testing._cache_harness import (
    CacheRun,
    CacheSpec,
    StockCache,
    UntrimmableCache,
    require_lengths,
    require_moved,
    require_same_objects,
)
from speculate.testing.contract import MissingPackageError, contract, require
from speculate.testing.layers import AttentionLayer, Layer, run_layers


class CacheTests(ABC):
    """Tests a cache backend: derive a class `Test...` and say how to make a cache.

    Attributes:
        whole_blocks: Only whole blocks can be trimmed.
        prefill_differs: Rows of an unrecorded block see less in mlx-lm than those of single
            steps do, as in a window with sinks.
    """

    whole_blocks: bool = False
    prefill_differs: bool = False

    @abstractmethod
    def make_cache(self) -> Rollbackable:
        """Return a fresh, empty cache."""

    @abstractmethod
    def adopt(self, stock: object, /) -> Rollbackable:
        """Move the content of mlx-lm's cache into a new cache."""

    def make_caches(self) -> list[Rollbackable]:
        """Return the caches of one list: a single one, unless several are tested together."""
        return join([self.make_cache()])

    def layers(self) -> Sequence[Layer]:
        """Return one layer for each cache; by default attention calling `update_and_fetch`."""
        return [AttentionLayer()]

    def adopt_caches(self, stock: Sequence[object]) -> list[Rollbackable]:
        """Adopt the caches of one list."""
        return join([self.adopt(cache) for cache in stock])

    def spec(self) -> CacheSpec:
        """Return what the contracts drive."""
        flags = (self.whole_blocks, self.prefill_differs)
        return CacheSpec(self.make_caches, self.layers(), self.adopt_caches, *flags)

    def _recording_runs(self, prompts: Iterable[int] = (0, 7, 12)) -> Iterator[CacheRun]:
        """Yield caches that are recording, after no prompt, and ones below and above 8 rows."""
        spec = self.spec()
        for prompt in prompts:
            yield CacheRun(spec, prompt, recording=True)

    @contract
    def test_an_empty_cache_answers_every_query(self) -> None:
        """A cache that nothing was fed to reports that it is empty and can trim 0 tokens."""
        for cache in self.spec().make():
            require(isinstance(cache, Trimmable), f"{type(cache).__name__} is not Trimmable")
            require(isinstance(cache, Rollbackable), f"{type(cache).__name__} is not Rollbackable")
            # mlx-lm tests `if cache`: a falsy cache would lose its mask and its state.
            require(bool(cache) is True, f"{type(cache).__name__} is falsy, as an empty list is")
            require(cache.length() == 0, f"length is {cache.length()}")
            require(cache.arrays() == [], f"{len(cache.arrays())} arrays are held")
            require(cache.can_trim(0), "says that it cannot trim 0 tokens")
            require(not cache.can_trim(1), "says that it can trim a token")
            require(cache.trim(0) == 0, "trim(0) is not 0")

    @contract
    def test_a_layer_sees_what_mlx_lms_cache_shows(self) -> None:
        """Blocks of any width and single steps, recorded or not, see the rows of mlx-lm's cache."""
        spec = self.spec()
        for recording in (False, True):
            run = CacheRun(spec)
            for width in (3, 1, 1, 9, 2, 1, 5, 1, 1, 1, 4, 80, 1, 2):
                if recording:
                    run.start()
                run.feed(width)
            run.feed(1)

    @contract
    def test_trimmed_tokens_leave_no_trace(self) -> None:
        """Feeding `xs + ys` and trimming `len(ys)` equals feeding `xs`, at every cut."""
        for run in self._recording_runs():
            for width in (1, 2, 5, 9):
                for kept in (0, width) if self.whole_blocks else range(width + 1):
                    run.feed(kept, width - kept)
                    run.trim(width - kept)
            run.feed(1)

    @contract
    def test_single_steps_are_trimmed_like_blocks(self) -> None:
        """Several single steps can be trimmed at once, as a draft model needs."""
        for run in self._recording_runs():
            for right, wrong in ((0, 1), (2, 3), (1, 0), (0, 4), (3, 1), (4, 5)):
                for step in [(1, 0)] * right + [(0, 1)] * wrong:
                    run.feed(*step)
                run.trim(wrong)
            run.feed(1)

    @contract
    def test_several_blocks_are_trimmed_at_once(self) -> None:
        """A trim spans blocks of different widths, and ends inside one where that is possible."""
        spec, widths = self.spec(), (3, 1, 4, 1, 5)
        ends = [sum(widths[-count:]) for count in range(1, len(widths) + 1)]
        for n in ends if spec.whole_blocks else range(1, sum(widths) + 1):
            run, right = CacheRun(spec, 12, recording=True), sum(widths) - n
            for width in widths:
                good = min(width, right)
                run.feed(good, width - good)
                right -= good
            run.trim(n)
            run.feed(2)

    @contract
    def test_a_block_is_trimmed_in_several_steps(self) -> None:
        """One block is trimmed several times, and the sequence continues from each place."""
        if self.whole_blocks:
            return
        for right in range(6):
            for run in self._recording_runs():
                run.feed(right, 9 - right)
                for n in (2, 1):
                    run.trim(n)
                    run.feed(0, 1)
                    run.trim(1)
                run.trim(6 - right)
                run.feed(1)
                run.trim(1)
                run.feed(2)

    @contract
    def test_the_last_64_tokens_can_be_trimmed(self) -> None:
        """At least 64 tokens can be trimmed, whether they came one by one or in blocks."""
        for width in (1, 8):
            for run in self._recording_runs((12, 150)):
                for block in [(width, 0)] * (16 // width) + [(0, width)] * (64 // width):
                    run.feed(*block)
                run.trim(64)
                run.feed(2)

    @contract
    def test_an_impossible_trim_is_refused_and_changes_nothing(self) -> None:
        """A trim beyond the content raises, never clamps; a possible one still works after it."""
        for run in self._recording_runs((0, 40)):
            run.feed(0, 3)
            for n in (run.length + 1, run.length + 2, 10_000, -1, -3):
                run.refuses(n)
                run.check_lengths()
            run.trim(3)
            run.feed(2)

    @contract
    def test_can_trim_predicts_trim(self) -> None:
        """`trim` does what `can_trim` says of each number, and `is_trimmable` agrees."""
        spec = self.spec()
        for prompt in (0, 5, 40):
            for n in (-1, 0, 1, 3, 4, 7, 8, prompt + 7, prompt + 8):
                run = CacheRun(spec, prompt, recording=True)
                run.feed(0, 4)
                run.feed(0, 3)
                for layer, cache in enumerate(run.caches):
                    agrees = not cache.can_trim(n) or n == 0 or cache.is_trimmable()
                    said = f"layer {layer} says that it can trim {n} tokens"
                    require(agrees, f"{said}, and that it is not trimmable")
                if all(cache.can_trim(n) for cache in run.caches):
                    run.trim(n)
                else:
                    run.refuses(n)

    @contract
    def test_starting_and_stopping_keep_the_content(self) -> None:
        """Recording starts and stops repeatedly, at any length, without changing the content."""
        run = CacheRun(self.spec(), 7)
        for width in (1, 3, 2, 8, 1):
            run.start()
            run.feed(width, 0)
            run.start()
            run.feed(0, width)
            run.trim(width)
            run.stop()
            run.feed(1)
            run.stop()
        run.feed(1)

    @contract
    def test_a_checkpoint_restores_the_state_it_was_made_in(self) -> None:
        """Checkpoints work whether recording or not, over any distance, nested, and repeatedly."""
        spec = self.spec()
        for recording in (False, True):
            for prompt in (0, 1, 40):
                run = CacheRun(spec, prompt)
                for widths in ((1,), (5, 1), (80, 3), (1, 1, 1)):
                    if recording:
                        run.start()
                    outer = run.checkpoint()
                    for width in widths:
                        run.feed(0, width)
                        mx.eval(arrays_of(run.caches))
                    inner = run.checkpoint()
                    run.feed(0, 2)
                    run.restore(inner)
                    run.restore(outer)
                    run.feed(0, 1)
                    run.restore(outer)
                    run.feed(2)

    @contract
    def test_a_failed_forward_leaves_no_trace(self) -> None:
        """No layer keeps a failed block, and what was recorded before can still be trimmed."""
        spec = self.spec()
        for after in range(len(spec.layers) + 1):
            for width in (1, 5, 30):
                run = CacheRun(spec, 12)
                run.fail(width, after)
                run.feed(2)
                run.start()
                run.fail(width, after)
                run.feed(0, 4)
                run.fail(width, after)
                run.trim(4)
                run.feed(2)

    @contract
    def test_a_group_is_trimmed_as_a_whole_or_not_at_all(self) -> None:
        """If one cache of a group cannot trim, no other cache of the group trims either."""
        (run,) = self._recording_runs((12,))
        other = UntrimmableCache(run.caches[0])
        grouped = [cache for cache in run.caches if isinstance(cache, Grouped)]
        require(len(grouped) == len(run.caches), "is no member of a group: see BaseCache")
        join([*run.caches, other])
        run.start()
        run.feed(0, 3)
        run.refuses(3)
        run.check_lengths()
        other.trimmable = True
        run.trim(3)
        run.feed(2)

    @contract
    def test_no_cache_is_handed_back_while_tokens_wait_for_replay(self) -> None:
        """`release` raises while tokens that were kept are in no cache, and changes nothing."""
        spec = self.spec()
        run = CacheRun(spec, 12)
        other = UntrimmableCache(run.caches[0])
        group = group_of(join([*run.caches, other]))
        require(group is not None, "is no member of a group: see BaseCache")
        if group is not None:
            run.start()
            group.start()
            run.feed(5)
            # The whole block is rolled back, as the other cache can trim no part of it.
            group.keep(3)
            run.length = run.right = 12
            run.keeps_its_content()
            with group.replaying() as tokens:
                found = run_layers(spec.layers, run.caches, tokens)
            same = bool(mx.array_equal(found, spec.expected(12, 15)))
            require(same, "replayed tokens are seen differently after release was refused")
            run.length = run.right = 15
            group.stop()
            run.release()

    @contract
    def test_a_cache_can_start_at_a_later_position(self) -> None:
        """The first row has the given position, and nothing before it can be trimmed."""
        spec, start = self.spec(), 40
        caches = [cache for cache in spec.make() if isinstance(cache, BaseCache)]
        if not caches or any(type(cache).start_at is BaseCache.start_at for cache in caches):
            return
        for cache in caches:
            cache.start_at(start)
            cache.start_speculation()
        require_lengths(caches, start, "before anything was fed")
        for width in (5, 1):
            tokens = mx.arange(width)[None]
            first = run_layers(spec.layers, caches, tokens)
            mx.eval(first)
            require_lengths(caches, start + width, f"for {width}")
            for cache in caches:
                require(not cache.can_trim(width + 1), "says that it can trim beyond its start")
                cache.trim(width)
            same = mx.array_equal(first, run_layers(spec.layers, caches, tokens))
            require(bool(same), "the same tokens are seen differently the second time")
            for cache in caches:
                cache.trim(width)

    @contract
    def test_mlx_lm_continues_from_a_cache(self) -> None:
        """`release` returns the sequence and nothing else, whatever was trimmed before."""
        spec = self.spec()
        for prompt in (0, 3, 40):
            for right, wrong in ((0, 0), (1, 0), (0, 4), (5, 0)):
                run = CacheRun(spec, prompt, recording=True)
                run.round(right, wrong)
                stock = run.release()
                for position in range(run.length, run.length + 3):
                    said = f"position {position}: mlx-lm's layer sees other rows"
                    spec.require_next(stock, position, said)

    @contract
    def test_adopting_and_handing_back_move_the_content(self) -> None:
        """The same objects are returned, filled; in between they are empty."""
        spec = self.spec()
        for prompt in (0, 7, 12):
            run = CacheRun(spec, prompt)
            stock = run.release()
            for _ in range(3):
                run.continue_with(spec.adopt(stock))
                require_moved(stock)
                run.start()
                run.round(2, 3)
                run.feed(1)
                require_same_objects(run.release(), stock)

    @contract
    def test_caches_prefilled_by_mlx_lm_in_any_way_are_adopted(self) -> None:
        """Tokens may come one by one, around a window once or twice, or in chunks of any size."""
        spec = self.spec()
        one = (1,)
        for widths in (one * 5, one * 8, one * 11, one * 19, (12, 1, 1), (*one * 11, 4), (20,)):
            run = CacheRun(spec)
            stock = run.release()
            for width in widths:
                tokens = spec.sequence(run.length, run.length + width)
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
        run.feed(0, 700)
        run.start()
        run.feed(0, 1)
        arrays = sum(len(cache.arrays()) for cache in run.caches)
        stock = run.release()
        mx.eval([cast(StockCache, cache).state for cache in stock])
        del run
        gc.collect()
        held = mx.get_active_memory() - before
        needed = sum(cast(StockCache, cache).nbytes for cache in stock)
        # MLX may keep a part of a larger buffer alive per array instead of copying.
        require(
            held <= needed + 20_000 * arrays, f"{held} bytes stay alive for {needed} bytes of rows"
        )

    @contract
    def test_arrays_lists_everything_a_cache_holds(self) -> None:
        """Once `arrays` is evaluated, nothing lazy is left that another thread cannot evaluate."""
        spec = self.spec()
        run = CacheRun(spec, 12, recording=True)
        run.round(2, 3)
        run.feed(0, 1)
        mx.eval(arrays_of(run.caches))

        def feed_elsewhere() -> None:
            mx.eval(run_layers(spec.layers, run.caches, mx.array([[1]])))

        with ThreadPoolExecutor(1) as pool:
            error = pool.submit(feed_elsewhere).exception()
        require(error is None, f"another thread cannot continue: {[error]}")

    @contract
    def test_a_cache_is_saved_loadably_or_not_at_all(self) -> None:
        """mlx-lm's `save_prompt_cache` raises, or writes what `load_prompt_cache` reads."""
        # Imported here because nothing else in the kit needs mlx-lm.
        from mlx_lm.models.cache import load_prompt_cache, save_prompt_cache

        spec = self.spec()
        for prompt in (0, 12):
            run = CacheRun(spec, prompt, recording=True)
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
            said = "a cache that was saved and loaded holds other rows"
            spec.require_next(stock, prompt, said)

    @contract
    def test_operations_in_any_order_keep_the_sequence(
        self, *, examples: int = 12, steps: int = 20, seed: int | None = None
    ) -> None:
        """Random operations of a decoding loop, in any order, never change the sequence.

        Each of the `examples` is a run of so many steps. Without a seed they are the same every
        time. Needs hypothesis.
        """
        if find_spec("hypothesis") is None:
            raise MissingPackageError(
                "this contract needs hypothesis, which is missing: "
                'pip install "mlx-speculate[testing]". No other contract needs it.'
            )
        from speculate.testing._cache_machine import run_machine

        run_machine(self.spec(), examples, steps, seed)
