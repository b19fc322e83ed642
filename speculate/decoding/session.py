"""The caller's list during one call of `generate`: borrow, settle, return, recognise it later."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import final

from speculate.decoding.block import Token
from speculate.decoding.config import DecoderConfig
from speculate.decoding.loan import Loan
from speculate.decoding.run import Run
from speculate.decoding.stats import Stats
from speculate.errors import CacheOnLoanError, SpeculateError


@final
class CachedSequence:
    """Remembers which caches hold the sequence of the last call, and its length.

    On a later turn over the same cache objects, the proposers continue from their position, and
    the length is known even if the caches do not record one.

    Attributes:
        in_step: Whether the proposers are at the end of that sequence: `False` after an
            interrupt inside a proposer.
    """

    def __init__(self) -> None:
        self._caches: list[weakref.ref[object]] = []
        self._length = 0
        self.in_step: bool = False

    def remember(self, caches: list[object], length: int, *, in_step: bool) -> None:
        """Record that the caches, and if `in_step` the proposers, hold `length` tokens."""
        references = [weakref.ref(cache) for cache in caches]
        self._caches, self._length, self.in_step = references, length, in_step

    def length_in(self, caches: Sequence[object], reported: int) -> int | None:
        """Return the length of the remembered sequence, or `None` if the caches changed.

        Args:
            caches: The caller's list, before the loan.
            reported: Length that the caches report; 0 if they record none.
        """
        # A recurrent state does not record the length of its sequence.
        unknown = reported == 0 and not any(map(_knows_length, caches))
        fits = reported == self._length or unknown
        same = len(caches) == len(self._caches) and all(
            ref() is cache for ref, cache in zip(self._caches, caches, strict=True)
        )
        return self._length if same and fits else None


def _knows_length(cache: object) -> bool:
    """Whether a cache records how many tokens it was fed."""
    # Imports mlx-lm, which a caller with its caches has loaded already.
    from speculate.backends.adopt import knows_length

    return knows_length(cache)


@final
class Session:
    """One call of `generate`, from borrowing the caller's list until its return.

    Args:
        config: The decoder's parts.
        caches: The caller's list, borrowed from `start` on.
        cached: What the decoder remembers of its last call.

    Attributes:
        over: Whether the list was returned for good.
    """

    def __init__(self, config: DecoderConfig, caches: list[object], cached: CachedSequence) -> None:
        self._config = config
        self._loan = Loan(config.model, caches)
        self._run: Run | None = None
        self._position = 0
        self._cached = cached
        self._settled_at: int | None = None
        self.over: bool = False

    @property
    def pending(self) -> int | None:
        """The emitted token that is in no cache."""
        return None if self._run is None else self._run.unfed

    @property
    def finished(self) -> bool:
        """Whether no more tokens will be emitted."""
        return self._run is not None and self._run.finished

    def start(
        self,
        prompt: list[int],
        history: Sequence[int],
        max_tokens: int | None,
        stop_tokens: frozenset[int],
        stats: Stats,
    ) -> None:
        """Borrow the list, bring the proposers to its sequence, and prefill the prompt."""
        self._loan.take()
        reported = self._loan.length()
        known = self._cached.length_in(self._loan.originals, reported)
        self._position = position = reported if known is None else known
        self._run = Run(self._config, self._loan, max_tokens, stop_tokens, stats)
        in_step = known if self._cached.in_step else None
        self._config.proposers.begin(position, in_step, history)
        try:
            self._run.start(prompt, position, history)
        except BaseException:
            # The target's caches will be restored; restore the proposers likewise.
            self._config.proposers.reset(position, history)
            raise

    def next(self) -> Token:
        """Return the next token.

        Raises:
            SpeculateError: `settle` failed, which ended the sequence.
        """
        if self._run is None or self.over:
            raise SpeculateError(
                "settle() failed or was interrupted, which ended this generation: its tokens so "
                "far are in the prompt cache. Start a new generation from there"
            )
        if self._settled_at is not None:
            self._borrow_again(self._run, self._settled_at)
        return self._run.next()

    def settle(self) -> None:
        """Bring the caches to the emitted sequence, and return them until the next token.

        If that fails or is interrupted, they are returned for good.
        """
        if self._settled_at is not None or self._run is None or self.over:
            return
        try:
            self._run.pause()
            self._settled_at = self._loan.length()
            self._give_back(self._run)
        except BaseException:
            self.end()
            raise

    def withdraw(self, given: Token | None) -> None:
        """Revert a token that the caller did not receive; see `Run.withdraw`."""
        if self._run is not None and not self.over:
            self._run.withdraw(given)

    def end(self) -> None:
        """Bring the caches to the emitted sequence, and return them for good.

        Call `finish` afterwards, because an interrupt may come in the middle.
        """
        if self.over:
            return
        try:
            if self._run is not None:
                self._run.end()
        except Exception:
            self._close()
            raise
        self._close()

    def finish(self) -> None:
        """Complete an interrupted `end`, and return the caches in any case."""
        try:
            self.end()
        finally:
            self._close()

    def _close(self) -> None:
        if self._run is None:
            self._loan.give_back()  # Nothing was fed.
        else:
            self._give_back(self._run)
        self.over = True

    def _borrow_again(self, run: Run, length: int) -> None:
        self._loan = Loan(self._config.model, self._loan.list)
        self._loan.take()
        if self._loan.length() != length:
            found = self._loan.length()
            raise CacheOnLoanError(
                f"the prompt cache changed while the run was settled: it held {length} tokens "
                f"and now holds {found}. Close the generator and start a new one."
            )
        self._settled_at = None
        run.resume(self._loan)

    def _give_back(self, run: Run) -> None:
        if self._loan.out:
            self._loan.give_back()
            in_step = not self._config.proposers.interrupted
            length = self._position + run.committed
            self._cached.remember(self._loan.list, length, in_step=in_step)
