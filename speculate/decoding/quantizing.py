"""When the rows of full attention are quantised: at the same token as in plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from speculate.backends.joining import group_of
from speculate.decoding.setup import KVQuantization
from speculate.errors import OptionError
from speculate.protocols import Rollbackable


@final
class Quantizer:
    """Replaces caches in a list once the text is long enough.

    Args:
        options: Whether and when; `None` does nothing.
        caches: One model's caches. Entries are replaced in this list.

    Raises:
        OptionError: A sliding window cannot be quantised. mlx-lm would find out in the
            middle of the answer.
    """

    def __init__(self, options: KVQuantization | None, caches: list[Rollbackable]) -> None:
        self._options = options
        self._caches = caches
        self._group = group_of(caches)
        self._done = options is None
        if options is not None:
            self._refuse_windows()

    def apply(self) -> None:
        """Quantise what is due. Call it after every forward whose tokens are kept."""
        if self._options is None or self._done:
            return
        from speculate.backends.kv import RewindableKVCache
        from speculate.backends.quantized_kv import quantize

        plain = {n: c for n, c in enumerate(self._caches) if isinstance(c, RewindableKVCache)}
        if any(cache.length() < self._options.start for cache in plain.values()):
            return
        size, bits = self._options.group_size, self._options.bits
        # All are packed before any is replaced: a failure changes nothing.
        packed = {layer: quantize(cache, size, bits) for layer, cache in plain.items()}
        self.replace([packed.get(n, cache) for n, cache in enumerate(self._caches)])
        self._done = True

    def check(self) -> None:
        """Refuse rows that cannot be packed, while nothing was emitted.

        Raises:
            OptionError: Their width is not a multiple of the group size.
        """
        if self._options is None:
            return
        from speculate.backends.kv import RewindableKVCache

        for layer, cache in enumerate(self._caches):
            if isinstance(cache, RewindableKVCache) and cache.keys is not None:
                width, size = cache.keys.shape[-1], self._options.group_size
                if width % size:
                    raise OptionError(
                        f"kv_group_size={size} does not divide the {width} numbers of a row in "
                        f"layer {layer}: use a smaller group"
                    )

    def replace(self, caches: Sequence[Rollbackable]) -> None:
        """Put other caches of the same lengths in the places of some, or all, of them.

        Can be called again if an interrupt came: until the last step the list is the old one.
        """
        for layer, cache in enumerate(caches):
            if self._group is not None and cache is not self._caches[layer]:
                self._group.replace(layer, cache)
        self._caches[:] = caches

    def room(self) -> int | None:
        """Drafts that the next block may hold so that it ends where rows get quantised."""
        if self._options is None or self._done:
            return None
        length = max(cache.length() for cache in self._caches)
        return max(0, self._options.start - length - 1)

    def _refuse_windows(self) -> None:
        from speculate.backends.rotating import RewindableRotatingKVCache

        for layer, cache in enumerate(self._caches):
            if isinstance(cache, RewindableRotatingKVCache):
                raise OptionError(
                    f"kv_bits cannot be used: layer {layer} has a sliding window, which mlx-lm "
                    "cannot quantise. Leave kv_bits out for this model, or max_kv_size."
                )
