"""Conversion of mlx-lm's caches to rewindable ones and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import entry_points
from typing import Final, cast

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, QuantizedKVCache, RotatingKVCache

from speculate.backends.arrays import RewindableArraysCache
from speculate.backends.cache_list import RewindableCacheList
from speculate.backends.group import StartsLate, join
from speculate.backends.kv import RewindableKVCache, RewindableQuantizedKVCache
from speculate.backends.rotating import RewindableRotatingKVCache
from speculate.errors import CannotRewindError, OptionError
from speculate.protocols import Rollbackable

ENTRY_POINTS: Final = "speculate.backends"
"""Entry-point group: class name of a cache -> callable that adopts one."""

_STOCK: Final = (KVCache, QuantizedKVCache, RotatingKVCache, ArraysCache)


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
    for layer, cache in enumerate(caches):
        reason = _refusal(cache)
        if reason is not None:
            raise CannotRewindError(f"layer {layer}: {reason}")
    if caches and all(isinstance(cache, Rollbackable) for cache in caches):
        return [cache for cache in caches if isinstance(cache, Rollbackable)]
    restore = contents(caches)
    try:
        length = max((_length(cache) for cache in caches), default=0)
        adopted = join([_adopt(cache, length) for cache in caches])
        if position:
            for cache in adopted:
                if isinstance(cache, StartsLate):
                    cache.start_at(position)
        return adopted
    except BaseException:
        restore()
        raise


def release(caches: Sequence[Rollbackable]) -> list[object]:
    """Move the content of rewindable caches into caches of mlx-lm: all of them or none.

    Raises:
        Exception: What a cache raised. All hold what they held before, and the call can be
            repeated.
    """
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
    parts = [part for cache in caches for _, part in _parts(cache)]
    # An object without attributes of its own holds nothing, and is refused later.
    now: list[dict[str, object]] = [getattr(part, "__dict__", {}) for part in parts]
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
                shared = next((o for o in map(owners.get, {id(part), *_rows(part)}) if o), None)
                if shared is not None:
                    what = "one" if shared[1] is part else "the rows of one"
                    raise OptionError(
                        f"{shared[0]} and {place} share {what} {type(part).__name__}, and each "
                        "would overwrite what the other stores: give every layer a cache of its "
                        "own, from model.make_cache() or mlx_lm's make_prompt_cache(model)"
                    )
                owners |= dict.fromkeys({id(part), *_rows(part)}, (place, part))


def _parts(cache: object, place: str = "") -> Iterator[tuple[str, object]]:
    """Yield a cache and the caches inside it, each with its place in words."""
    yield place, cache
    if isinstance(cache, CacheList):
        for index, member in enumerate(cache.caches):
            yield from _parts(member, f"member {index} of {place}")


def _rows(cache: object) -> set[int]:
    """Return ids of the buffers that a cache writes in place; a state's entries are not."""
    if not isinstance(cache, KVCache | QuantizedKVCache | RotatingKVCache):
        return set()
    buffers = (cache.keys, cache.values)
    rows = [part for one in buffers for part in (one if isinstance(one, tuple | list) else [one])]
    return {id(part) for part in rows if part is not None}


def _refusal(cache: object) -> str | None:
    """Return why a cache cannot be adopted; `None` if it can."""
    if isinstance(cache, Rollbackable):
        return None
    if type(cache) is CacheList:
        return next((why for why in map(_refusal, cache.caches) if why is not None), None)
    if type(cache) not in _STOCK and _third_party(cache) is None:
        return (
            f"no backend can rewind a {type(cache).__name__}. Write one (see 'Writing a "
            f"backend') and name it in the entry points '{ENTRY_POINTS}'."
        )
    if _batch(cache) != 1:
        return "batched caches are not supported yet; decode one sequence at a time"
    return None


def _batch(cache: object) -> int:
    """Return the number of sequences in a cache; 0 if it is padded for several."""
    if isinstance(cache, ArraysCache):
        padded = cache.left_padding is not None or cache.lengths is not None
        return 0 if padded else int(cache.batch_size)
    if isinstance(cache, QuantizedKVCache):
        packed = cast("Sequence[mx.array] | None", cache.keys)
        return 1 if packed is None else packed[0].shape[0]
    if isinstance(cache, KVCache | RotatingKVCache) and cache.keys is not None:
        return int(cache.keys.shape[0])
    return 1


def knows_length(cache: object) -> bool:
    """Return whether a cache knows how many tokens it was fed: a recurrent state does not."""
    if isinstance(cache, CacheList):
        return any(knows_length(member) for member in cache.caches)
    return isinstance(cache, Rollbackable | KVCache | QuantizedKVCache | RotatingKVCache)


def _length(cache: object) -> int:
    """Return the tokens in a cache; 0 for a recurrent state, which does not count them."""
    if isinstance(cache, Rollbackable):
        return cache.length()
    if isinstance(cache, CacheList):
        return max((_length(member) for member in cache.caches), default=0)
    if isinstance(cache, KVCache | QuantizedKVCache | RotatingKVCache):
        return int(cache.offset)
    return 0


def _adopt(cache: object, length: int) -> Rollbackable:
    if isinstance(cache, Rollbackable):
        return cache
    if isinstance(cache, CacheList):
        return RewindableCacheList([_adopt(c, length) for c in cache.caches], cache)
    if isinstance(cache, ArraysCache):
        return RewindableArraysCache.adopt(cache, length)
    if isinstance(cache, KVCache):
        return RewindableKVCache.adopt(cache)
    if isinstance(cache, QuantizedKVCache):
        return RewindableQuantizedKVCache.adopt(cache)
    if isinstance(cache, RotatingKVCache):
        return RewindableRotatingKVCache.adopt(cache)
    adopt_it = _third_party(cache)
    if adopt_it is None:
        raise CannotRewindError(f"no backend can rewind a {type(cache).__name__}")
    return adopt_it(cache)


def _third_party(cache: object) -> Callable[[object], Rollbackable] | None:
    for entry in entry_points(group=ENTRY_POINTS, name=type(cache).__name__):
        adopt_it: Callable[[object], Rollbackable] = entry.load()
        return adopt_it
    return None
