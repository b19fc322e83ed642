"""A run together with the caller's list it works on, and what a decoder remembers of texts."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import final

from speculate.decoding.loan import Loan
from speculate.decoding.run import Run
from speculate.decoding.setup import Setup
from speculate.decoding.token import Token
from speculate.errors import CacheOnLoanError


@final
class KnownText:
    """The text that a decoder left in a prompt cache.

    On a later turn over the same cache objects the proposers go on where they are, and a
    length is known that a recurrent state alone could not tell.
    """

    def __init__(self) -> None:
        self._caches: list[weakref.ref[object]] = []
        self._length = 0

    def remember(self, caches: list[object], length: int) -> None:
        """The caches hold a text of `length` tokens now."""
        self._caches = [weakref.ref(cache) for cache in caches]
        self._length = length

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
    from speculate.backends.adoption import tells_length

    return tells_length(cache)


@final
class Session:
    """One call of `generate`, from the loan of the caller's list to its return.

    Args:
        setup: The decoder's parts.
        loan: The list, on loan.
        run: The text.
        texts: What the decoder remembers.
    """

    def __init__(self, setup: Setup, loan: Loan, run: Run, texts: KnownText) -> None:
        self._setup = setup
        self._loan = loan
        self._run = run
        self._position = 0
        self._texts = texts
        self._settled_at: int | None = None

    @property
    def pending(self) -> int | None:
        """The token that was emitted and is in no cache."""
        return self._run.unfed

    def start(self, prompt: list[int], history: Sequence[int]) -> None:
        """Bring the proposers to this text, and take in the prompt."""
        told = self._loan.length()
        known = self._texts.length_in(self._loan.originals, told)
        position = told if known is None else known
        self._position = position
        self._setup.drafting.begin(position, known, history)
        try:
            self._run.start(prompt, position, history)
        except BaseException:
            # The target went back to where it was; so do they.
            self._setup.drafting.begin_again(position, history)
            raise

    def next(self) -> Token:
        """The next token."""
        if self._settled_at is not None:
            self._borrow_again(self._settled_at)
        return self._run.next()

    def settle(self) -> None:
        """Bring the caches to the emitted text, and hand them back for a while."""
        if self._settled_at is None:
            self._run.pause()
            self._settled_at = self._loan.length()
            self._give_back()

    def end(self) -> None:
        """Bring the caches to the emitted text, and hand them back for good."""
        if self._settled_at is not None:
            self._run.end()
            return
        try:
            self._run.end()
        finally:
            self._give_back()

    def _borrow_again(self, length: int) -> None:
        loan = Loan(self._setup.model, self._loan.list)
        if loan.length() != length:
            found = loan.length()
            loan.give_back()
            raise CacheOnLoanError(
                f"the prompt cache changed while the run was settled: it held {length} tokens "
                f"and now holds {found}. Close the generator and start a new one."
            )
        self._loan, self._settled_at = loan, None
        self._run.resume(loan)

    def _give_back(self) -> None:
        self._loan.give_back()
        self._texts.remember(self._loan.list, self._position + self._run.committed)
