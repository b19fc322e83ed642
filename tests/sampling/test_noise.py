"""The noise is uniform, independent wherever it should be, and the same wherever it must be."""

from __future__ import annotations

import math
from typing import Final

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from speculate.sampling import noise
from speculate.sampling.noise import gumbel, hashes, key, uniform
from speculate.testing.samplers import chi_square
from tests.support.exact_distributions import CHANCE
from tests.support.table_models import number

SEEDS: Final = (0, 1, 2, 42, 2**31, 2**63 - 1, -5)
Words = NDArray[np.uint32]


def words(seed: int, positions: range, width: int, stream: int = 1) -> Words:
    """`(positions, width)` hashes."""
    found = hashes([key(seed, stream, position) for position in positions], width)
    return np.array(found)


def p_uniform(cells: NDArray[np.int64], count: int) -> float:
    """How well numbers below `count` fit equal chances."""
    seen = np.bincount(cells.ravel(), minlength=count)
    return chi_square([(one, cells.size / count) for one in seen.tolist()])


def p_pairs(a: Words, b: Words) -> float:
    """How well two rows of words fit independence: by their highest and by their lowest bits."""
    high = (a >> 28).astype(np.int64) * 16 + (b >> 28)
    low = (a & 15).astype(np.int64) * 16 + (b & 15)
    both = (a ^ b) >> 24
    return min(p_uniform(high, 256), p_uniform(low, 256), p_uniform(both.astype(np.int64), 256))


@pytest.mark.parametrize("seed", SEEDS)
def test_every_byte_is_uniform_over_a_vocabulary_and_over_positions(seed: int) -> None:
    wide, long = words(seed, range(4), 60_000), words(seed, range(20_000), 12)
    for found in (wide, long):
        for shift in (0, 8, 16, 24):
            assert p_uniform(((found >> shift) & 255).astype(np.int64), 256) > CHANCE


@pytest.mark.parametrize("seed", SEEDS)
def test_neighbouring_positions_ids_seeds_and_streams_are_independent(seed: int) -> None:
    grid = words(seed, range(2000), 100)
    assert p_pairs(grid[1:], grid[:-1]) > CHANCE
    assert p_pairs(grid[:, 1:], grid[:, :-1]) > CHANCE
    assert p_pairs(grid[1:, 1:], grid[:-1, :-1]) > CHANCE
    assert p_pairs(grid[1:, :-1], grid[:-1, 1:]) > CHANCE
    assert p_pairs(grid[64:], grid[:-64]) > CHANCE
    assert p_pairs(grid, words(seed + 1, range(2000), 100)) > CHANCE
    assert p_pairs(grid, words(seed + 2**32, range(2000), 100)) > CHANCE
    assert p_pairs(grid, words(seed, range(2000), 100, stream=2)) > CHANCE
    # A seed and a stream, or a stream and a position, must not add up to the same.
    assert p_pairs(grid, words(seed - 1, range(2000), 100, stream=2)) > CHANCE
    assert p_pairs(grid[1:], words(seed, range(1999), 100, stream=2)) > CHANCE


def test_one_id_over_many_seeds_is_uniform_and_independent() -> None:
    found = np.array(hashes([key(seed, 1, 7) for seed in range(100_000)], 3))
    assert p_uniform((found >> 24).astype(np.int64), 256) > CHANCE
    assert p_pairs(found[1:], found[:-1]) > CHANCE
    assert p_pairs(found[:, 1:], found[:, :-1]) > CHANCE


def test_any_changed_bit_of_seed_or_position_changes_half_of_the_bits() -> None:
    before = words(12345, range(1), 2000)[0]
    for bit in range(64):
        changed = words(12345 ^ (1 << bit), range(1), 2000)[0]
        assert_half(before, changed)
    for bit in range(20):
        assert_half(before, words(12345, range(1 << bit, (1 << bit) + 1), 2000)[0])


def assert_half(a: Words, b: Words) -> None:
    bits = np.unpackbits((a ^ b).view(np.uint8))
    assert abs(bits.mean() - 0.5) < 7 * 0.5 / math.sqrt(bits.size)


def test_places_do_not_share_keys() -> None:
    places = {
        key(seed, stream, position)
        for seed in range(-20, 20)
        for stream in range(20)
        for position in range(100)
    }
    assert len(places) == 40 * 20 * 100


@pytest.mark.parametrize("width", [1, 8, 100, 8193, 151_936, 248_044])
def test_the_width_of_the_vocabulary_does_not_matter(width: int) -> None:
    keys = [key(9, 1, position) for position in (3, 4)]
    full = hashes(keys, 248_320)
    assert mx.array_equal(hashes(keys, width), full[:, :width]).item()
    assert mx.array_equal(gumbel(keys, width), gumbel(keys, 248_320)[:, :width]).item()


def test_a_row_alone_is_the_row_in_a_block() -> None:
    keys = [key(9, 1, position) for position in range(7)]
    block = gumbel(keys, 5001)
    for row, one in enumerate(keys):
        assert mx.array_equal(gumbel([one], 5001)[0], block[row]).item()


def test_the_bits_are_those_of_integer_arithmetic_in_python() -> None:
    """On any device, and in any version: a seed's text stays."""

    def mix32(x: int) -> int:
        x = ((x ^ (x >> 17)) * 0xED5AD4BB) & 0xFFFFFFFF
        x = ((x ^ (x >> 11)) * 0xAC4C1B51) & 0xFFFFFFFF
        x = ((x ^ (x >> 15)) * 0x31848BAB) & 0xFFFFFFFF
        return x ^ (x >> 14)

    low, high = key(42, 1, 1000)
    expected = [mix32((mix32(id_ ^ low) + high) & 0xFFFFFFFF) for id_ in range(300)]
    assert hashes([(low, high)], 300)[0].tolist() == expected
    assert (low, high) == (2164357731, 1969957633)
    # The first number that SplitMix64 gives from state 0, as its authors publish it.
    assert noise._mix64(0) == 0xE220A8397B1DCDAF


@pytest.mark.parametrize("word", [0, 1, 2**31, 2**32 - 129, 2**32 - 1])
def test_the_noise_is_finite_at_either_end(word: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "hashes", lambda keys, width: mx.array([[word]], dtype=mx.uint32))
    assert 0 < number(uniform([(0, 0)], 1)) < 1
    assert math.isfinite(number(gumbel([(0, 0)], 1)))


def test_small_numbers_keep_their_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest noise comes from them: coarse steps there would tie tokens."""
    ids = mx.arange(1000, dtype=mx.uint32)[None]
    monkeypatch.setattr(noise, "hashes", lambda keys, width: ids)
    found = np.array(gumbel([(0, 0)], 1000))[0]
    exact = -np.log(-np.log1p(-(np.arange(1000) + 0.5) / 2**32))
    assert np.abs(found - exact).max() < 1e-5
    assert len(set(found.tolist())) == 1000


def test_the_noise_has_gumbel_s_distribution() -> None:
    found = np.array(gumbel([key(3, 1, position) for position in range(50)], 10_000))
    cells = np.floor(np.exp(-np.exp(-found.astype(np.float64))) * 200).astype(np.int64)
    assert p_uniform(np.clip(cells, 0, 199), 200) > CHANCE


@pytest.mark.soak
def test_a_hundred_million_draws_are_uniform_and_independent() -> None:
    width, rows, parts = 250_000, 20, 20
    seen = np.zeros((4, 256), dtype=np.int64)
    pairs = np.zeros((2, 65_536), dtype=np.int64)
    extremes = [1.0, 0.0]
    for part in range(parts):
        found = words(part // 4, range(part * rows, (part + 1) * rows), width)
        for byte in range(4):
            seen[byte] += np.bincount(((found >> (8 * byte)) & 255).ravel(), minlength=256)
        across = (found[1:] >> 24) * 256 + (found[:-1] >> 24)
        along = (found[:, 1:] >> 24) * 256 + (found[:, :-1] >> 24)
        pairs[0] += np.bincount(across.ravel(), minlength=65_536)
        pairs[1] += np.bincount(along.ravel(), minlength=65_536)
        extremes = [min(extremes[0], found.min() / 2**32), max(extremes[1], found.max() / 2**32)]
    assert seen.sum() == 4 * width * rows * parts
    for counts in (*seen, *pairs):
        assert chi_square([(one, counts.sum() / counts.size) for one in counts.tolist()]) > CHANCE
    assert extremes[0] < 1e-6
    assert extremes[1] > 1 - 1e-6
