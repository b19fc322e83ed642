"""Conversion of mlx-lm's caches to rewindable ones and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import entry_points
from typing import Final, Never, cast

import attrs
import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, QuantizedKVCache, RotatingKVCache

from speculate.backends.arrays import RewindableArraysCache
from speculate.backends.base import BaseCache
from speculate.backends.cache_list import RewindableCacheList
from speculate.backends.group import group_of, join
from speculate.backends.kv import RewindableKVCache, RewindableQuantizedKVCache
from speculate.backends.rotating import RewindableRotatingKVCache
from speculate.errors import CannotRewindError, OptionError
from speculate.protocols import Rollbackable

ENTRY_POINTS: Final = "speculate.backends"
"""Entry-point group: class name of a cache -> callable that adopts one."""

_ADOPT: Final[Mapping[type, Callable[[Never, int], Rollbackable]]] = {
    KVCache: RewindableKVCache.adopt,
    QuantizedKVCache: RewindableQuantizedKVCache.adopt,
    RotatingKVCache: RewindableRotatingKVCache.adopt,
    ArraysCache: RewindableArraysCache.adopt,
}
"""Class of mlx-lm's -> moves the content out of one, given the length of the other layers."""


def adopt(caches: Sequence[object], *, position: int = 0) -> list[Rollbackable]:
    """Move the content of a model's caches into one group of rewindable caches.

    Args:
        caches: One model's list; entries that are rewindable already are used as they are.
        position: For empty caches: position of the first token to be fed.

    Returns:
        One rewindable cache a layer, all of one group.

    Raises:
        CannotRewindError: Names the first layer whose cache no backend can rewind. Nothing was
            moved.
        OptionError: Two layers share a cache. Nothing was moved.
    """
    refuse_shared(caches)
    moves = []
    for layer, cache in enumerate(caches):
        try:
            moves.append(_adopter(cache))
        except CannotRewindError as error:
            raise CannotRewindError(f"layer {layer}: {error}") from None
    if caches and all(isinstance(cache, Rollbackable) for cache in caches):
        return [cache for cache in caches if isinstance(cache, Rollbackable)]
    restore = contents(caches)
    try:
        length = max((_inspect(part).length or 0 for part in _flat(caches)), default=0)
        adopted = join([move(length) for move in moves])
        for cache in adopted:
            if position and isinstance(cache, BaseCache):
                cache.start_at(position)
        return adopted
    except BaseException:
        restore()
        raise


def release(caches: Sequence[Rollbackable]) -> list[object]:
    """Move the content of rewindable caches into caches of mlx-lm: all of them or none.

    Raises:
        RewindError: Tokens wait to be replayed. Nothing was moved.
        Exception: What a cache raised. All hold what they held before, and the call can be
            repeated.
    """
    group = group_of(caches)
    if group is not None:
        group.require_replayed()
    restore = contents(caches)
    try:
        return [cache.release() for cache in caches]
    except BaseException:
        restore()
        raise


def contents(caches: Sequence[object]) -> Callable[[], None]:
    """Save the attributes of caches; calling the result restores them.

    It protects the short time in which content moves from one cache to another, attribute by
    attribute: an interrupt or a failure may come between any two.
    """
    # An object without attributes of its own holds nothing, and is refused later.
    now: list[dict[str, object]] = [getattr(part, "__dict__", {}) for part in _flat(caches)]
    held = [(attributes, dict(attributes)) for attributes in now]

    def restore() -> None:
        for attributes, before in held:
            attributes.update(before)

    return restore


def refuse_shared(*lists: Sequence[object]) -> None:
    """Refuse a cache that two layers share: they would overwrite each other's rows.

    Args:
        lists: Each a model's whole list. No cache may be in two of them either.

    Raises:
        OptionError: Names both layers.
    """
    owners: dict[int, tuple[str, object]] = {}
    for number, caches in enumerate(lists):
        for layer, cache in enumerate(caches):
            of_list = f" of list {number}" if len(lists) > 1 else ""
            for place, part in _parts(cache, f"layer {layer}{of_list}"):
                held = {id(part), *map(id, _inspect(part).rows)}
                shared = next((o for o in map(owners.get, held) if o), None)
                if shared is not None:
                    what = "one" if shared[1] is part else "the rows of one"
                    raise OptionError(
                        f"{shared[0]} and {place} share {what} {type(part).__name__}, and each "
                        "would overwrite what the other stores: give every layer a cache of its "
                        "own, from model.make_cache() or mlx_lm's make_prompt_cache(model)"
                    )
                owners |= dict.fromkeys(held, (place, part))


def _parts(cache: object, place: str = "") -> Iterator[tuple[str, object]]:
    """Yield a cache and the caches inside it, each with its place in words."""
    yield place, cache
    if isinstance(cache, CacheList):
        for index, member in enumerate(cache.caches):
            yield from _parts(member, f"member {index} of {place}")


def _flat(caches: Sequence[object]) -> list[object]:
    return [part for cache in caches for _, part in _parts(cache)]


@attrs.define
class _Content:
    """What is known of a cache without moving anything."""

    length: int | None = None  # tokens it was fed; `None` for a recurrent state, which has no count
    batch: int = 1  # sequences; 0 if it is padded for several
    rows: Sequence[mx.array] = ()  # buffers that it writes in place


def _inspect(part: object) -> _Content:
    found = _Content()
    if isinstance(part, KVCache | QuantizedKVCache | RotatingKVCache):
        rows: list[mx.array] = []
        for buffer in (part.keys, part.values):
            rows += [buffer] if isinstance(buffer, mx.array) else buffer or ()
        found = _Content(part.offset, rows[0].shape[0] if rows else 1, rows)
    elif isinstance(part, ArraysCache):
        # Without rows: a layer replaces its entries, and writes into none.
        padded = part.left_padding is not None or part.lengths is not None
        found.batch = 0 if padded else int(part.batch_size)
    if isinstance(part, Rollbackable):
        found.length = part.length()
    return found


def knows_length(cache: object) -> bool:
    """Return whether a cache knows how many tokens it was fed: a recurrent state does not."""
    return any(_inspect(part).length is not None for part in _flat([cache]))


def _adopter(cache: object) -> Callable[[int], Rollbackable]:
    """Return what moves the content of a cache, or raise `CannotRewindError`."""
    if isinstance(cache, Rollbackable):
        return lambda length: cache
    if type(cache) is CacheList:
        parts = [_adopter(part) for part in cache.caches]
        return lambda length: RewindableCacheList([move(length) for move in parts], cache)
    known = cast("Callable[[object, int], Rollbackable] | None", _ADOPT.get(type(cache)))
    move = _third_party(cache) if known is None else partial(known, cache)
    if _inspect(cache).batch != 1:
        raise CannotRewindError(
            "batched caches are not supported yet; decode one sequence at a time"
        )
    return move


def _third_party(cache: object) -> Callable[[int], Rollbackable]:
    """Return what another package moves the content of a cache with; only one package may."""
    name = type(cache).__name__
    found = list(entry_points(group=ENTRY_POINTS, name=name))
    if not found:
        raise CannotRewindError(
            f"no backend can rewind a {name}. Write one (see 'Writing a backend') and name it in "
            f"the entry points '{ENTRY_POINTS}'."
        )
    # A package that is on the path twice is found twice.
    if len(found) > 1 and len(values := sorted({entry.value for entry in found})) > 1:
        raise CannotRewindError(
            f"several packages name a backend for {name} in the entry points '{ENTRY_POINTS}': "
            f"{' and '.join(values)}. Uninstall all but one of them."
        )
    adopt_it: Callable[[object], Rollbackable] = found[0].load()
    return lambda length: adopt_it(cache)
