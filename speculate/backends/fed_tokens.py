"""The tokens fed to a group of caches since its checkpoint, and those to replay."""

from __future__ import annotations

from typing import Final, final

import mlx.core as mx

MAX_MERGED_REPLAY: Final = 8
"""From this many tokens on, a replay is a forward of its own and not the start of a block."""


@final
class FedTokens:
    """Token ids fed to one group of caches since its checkpoint.

    Tokens to replay are part of the sequence but in no cache: some layer could only be rewound to
    a point before them. They are fed again at the start of the next block.

    Args:
        replay: `(1, m)` ids to replay at the checkpoint. Each checkpoint has an object of its own.
    """

    def __init__(self, replay: mx.array | None = None) -> None:
        self._blocks: list[mx.array] = []
        self._replay = replay

    def add(self, fed: mx.array) -> None:
        """Append a block `(1, T)` that was fed; the first one begins with the replayed tokens."""
        self._blocks.append(fed)

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens: the rest was trimmed from the caches."""
        if self._blocks and sum(block.shape[1] for block in self._blocks) > length:
            whole = mx.concatenate(self._blocks, axis=1)
            self._blocks = [whole[:, :length]] if length else []

    def replayed(self) -> None:
        """Record that the tokens to replay are in the caches, outside of any window."""
        self._replay = None

    @property
    def empty(self) -> bool:
        """Whether nothing was fed since the checkpoint."""
        return not self._blocks

    def replayed_tokens(self) -> int:
        """Number of replayed tokens among those fed."""
        return self._replay_length() if self._blocks else 0

    def fed(self) -> int:
        """Number of new tokens fed, without the replayed ones."""
        return max(0, sum(block.shape[1] for block in self._blocks) - self._replay_length())

    def to_replay(self) -> mx.array | None:
        """Ids `(1, m)` to feed at the start of the next block."""
        return None if self._blocks else self._replay

    def to_replay_at_checkpoint(self) -> mx.array | None:
        """Ids `(1, m)` that had to be replayed at the checkpoint, fed since then or not."""
        return self._replay

    def replay_is_long(self) -> bool:
        """Whether the tokens to replay are better fed as a block of their own."""
        return not self._blocks and self._replay_length() >= MAX_MERGED_REPLAY

    def after_rewind(self, kept: int, cached: int) -> mx.array | None:
        """Ids `(1, m)` to replay after a rewind: those that are kept but in no cache.

        Args:
            kept: New tokens that are kept, without the replayed ones.
            cached: Tokens fed since the checkpoint that the caches still hold.
        """
        if not self._blocks:
            return self._replay
        keep = self._replay_length() + kept
        return mx.concatenate(self._blocks, axis=1)[:, cached:keep] if cached < keep else None

    def _replay_length(self) -> int:
        return 0 if self._replay is None else self._replay.shape[1]
