"""When the rows of full attention are quantised: at the same token as in plain decoding."""

from __future__ import annotations

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
        self._done = options is None
        if options is not None:
            self._refuse_windows()

    def apply(self) -> None:
        """Quantise what is due. Call it after every forward whose tokens are kept."""
        if self._options is None or self._done:
            return
        from speculate.backends.kv import RewindableKVCache
        from speculate.backends.quantized_kv import quantize

        plain = [c for c in self._caches if isinstance(c, RewindableKVCache)]
        self._done = all(cache.length() >= self._options.start for cache in plain)
        if not self._done:
            return
        group = group_of(self._caches)
        for layer, cache in enumerate(self._caches):
            if isinstance(cache, RewindableKVCache):
                packed = quantize(cache, self._options.group_size, self._options.bits)
                self._caches[layer] = packed
                if group is not None:
                    group.replace(layer, packed)

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
