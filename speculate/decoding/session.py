"""A run together with the caller's list it works on, and what a decoder remembers of texts."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import final

from speculate.decoding.block import Token
from speculate.decoding.config import Setup
from speculate.decoding.loan import Loan
from speculate.decoding.run import Run
from speculate.decoding.stats import Stats
from speculate.errors import CacheOnLoanError, SpeculateError


@final
class KnownText:
    """The text that a decoder left in a prompt cache.

    On a later turn over the same cache objects the proposers go on where they are, and a
    length is known that a recurrent state alone could not tell.

    Attributes:
        in_step: No proposer was interrupted in the middle of what it did.
    """

    def __init__(self) -> None:
        self._caches: list[weakref.ref[object]] = []
        self._length = 0
        self.in_step: bool = False

    def remember(self, caches: list[object], length: int, *, in_step: bool) -> None:
        """The caches hold a text of `length` tokens now, and so do the proposers if `in_step`."""
        references = [weakref.ref(cache) for cache in caches]
        self._caches, self._length, self.in_step = references, length, in_step

    def length_in(self, caches: Sequence[object], told: int) -> int | None:
        """Length of the known text, if these caches still hold it.

        Args:
            caches: A caller's list, before the loan.
            told: Tokens in it, as far as the caches can tell; 0 if they cannot.
        """
        # A recurrent state alone cannot tell how long its text is.
        fits = told == self._length or (told == 0 and not any(map(_tells, caches)))
        same = len(caches) == len(self._caches) and all(
            ref() is cache for ref, cache in zip(self._caches, caches, strict=True)
        )
        return self._length if same and fits else None


def _tells(cache: object) -> bool:
    """Whether a cache knows how many tokens it was fed."""
    # Costs an import of mlx-lm, which whoever has such caches has paid for already.
    from speculate.backends.adopt import knows_length

    return knows_length(cache)


@final
class Session:
    """One call of `generate`, from the loan of the caller's list to its return.

    Args:
        setup: The decoder's parts.
        caches: The list. It is on loan from `start` on.
        texts: What the decoder remembers.

    Attributes:
        over: The list was handed back for good.
    """

    def __init__(self, setup: Setup, caches: list[object], texts: KnownText) -> None:
        self._setup = setup
        self._loan = Loan(setup.model, caches)
        self._run: Run | None = None
        self._position = 0
        self._texts = texts
        self._settled_at: int | None = None
        self.over: bool = False

    @property
    def pending(self) -> int | None:
        """The token that was emitted and is in no cache."""
        return None if self._run is None else self._run.unfed

    @property
    def finished(self) -> bool:
        """Whether no token is to come."""
        return self._run is not None and self._run.finished

    def start(
        self,
        prompt: list[int],
        history: Sequence[int],
        max_tokens: int | None,
        stop_tokens: frozenset[int],
        stats: Stats,
    ) -> None:
        """Bring the proposers to this text, and take in the prompt."""
        self._loan.take()
        told = self._loan.length()
        known = self._texts.length_in(self._loan.originals, told)
        self._position = position = told if known is None else known
        self._run = Run(self._setup, self._loan, max_tokens, stop_tokens, stats)
        in_step = known if self._texts.in_step else None
        self._setup.drafting.begin(position, in_step, history)
        try:
            self._run.start(prompt, position, history)
        except BaseException:
            # The target will go back to where it was; so do they.
            self._setup.drafting.begin_again(position, history)
            raise

    def next(self) -> Token:
        """The next token.

        Raises:
            SpeculateError: `settle` failed, which ended the text.
        """
        if self._run is None or self.over:
            raise SpeculateError(
                "settle() was broken off, which ended this text: its tokens so far are in the "
                "prompt cache. Start a new one from there"
            )
        if self._settled_at is not None:
            self._borrow_again(self._run, self._settled_at)
        return self._run.next()

    def settle(self) -> None:
        """Bring the caches to the emitted text, and hand them back for a while.

        Broken off, it hands them back for good.
        """
        if self._settled_at is not None or self._run is None or self.over:
            return
        try:
            self._run.pause()
            self._settled_at = self._loan.length()
            self._give_back(self._run)
        except BaseException:
            self.finish()
            raise

    def withdraw(self, given: Token | None) -> None:
        """Take a token back that the caller was not given; see `Run.withdraw`."""
        if self._run is not None and not self.over:
            self._run.withdraw(given)

    def end(self) -> None:
        """Bring the caches to the emitted text, and hand them back for good.

        Call `finish` afterwards: an interrupt may come in the middle of this.
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
        """Do what `end` was kept from doing, and hand the caches back whatever happens."""
        try:
            self.end()
        finally:
            self._close()

    def _close(self) -> None:
        if self._run is None:
            # Nothing of the text was taken in.
            self._loan.give_back()
        else:
            self._give_back(self._run)
        self.over = True

    def _borrow_again(self, run: Run, length: int) -> None:
        self._loan = Loan(self._setup.model, self._loan.list)
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
            in_step = not self._setup.drafting.interrupted
            length = self._position + run.committed
            self._texts.remember(self._loan.list, length, in_step=in_step)
