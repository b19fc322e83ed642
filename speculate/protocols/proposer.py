"""What a proposer must do: guess the next tokens, and stay in step with the text."""

from collections.abc import Callable, Sequence
from typing import cast

import attrs
import mlx.core as mx
from typing_extensions import Protocol, runtime_checkable

from speculate.protocols.model import SpeculativeModel


@attrs.frozen(eq=False)
class Choice:
    """A token that was picked for a draft.

    Attributes:
        token: `(1,)` id.
        law: `(1, vocabulary)` float32 log-probabilities that it was drawn from, filters
            included; `None` where the way drafts are judged does not need it.
    """

    token: mx.array
    law: mx.array | None = None


Choose = Callable[[mx.array, int], Choice]
"""`choose(logits (1, vocabulary), index)` picks draft number `index` on the device."""


@attrs.frozen(eq=False)
class Draft:
    """Guesses for the tokens after the newest one.

    Nothing in it changes the text, with one exception. Ids that the target does not have, and
    laws that are none, are rejected: a law that is not finite, does not add up to 1, or gives
    its own token no probability. But where drafts are judged by their laws (modes "rejection"
    and "block"), a law that is a law and not the one that the token was drawn from shifts the
    text's distribution, and nobody can tell. Call `choose` once for each place of a draft, in
    order, and pass on what it gives.

    Attributes:
        tokens: `(k,)` ids, on the device; `k` may be less than was asked for, even 0.
        laws: The law that each token was really drawn from, as `Choose` gave it: `(1, n)`
            float32 log-probabilities; `None` for a token that was not drawn but certain.
            Empty means that all were certain.
    """

    tokens: mx.array
    laws: Sequence[mx.array | None] = ()


@attrs.frozen
class Verdict:
    """What became of a draft.

    Attributes:
        proposer: Name of whoever drafted.
        drafted: Tokens that were drafted.
        accepted: How many of them the target agreed with and were emitted.
    """

    proposer: str
    drafted: int
    accepted: int


@attrs.frozen(eq=False)
class Commit:
    """Tokens that the target has consumed and that will not be taken back.

    Attributes:
        tokens: `(m,)` ids, in text order.
        verdict: What became of this round's draft; `None` in prefill and where none was made.
        newest: The id that was emitted behind them and is not consumed yet, where it is
            known by now; `None` in prefill, and when the next step was launched ahead.
    """

    tokens: mx.array
    _hidden: mx.array
    verdict: Verdict | None = None
    _ids: Sequence[int] | None = None
    newest: int | None = None

    @property
    def hidden(self) -> mx.array:
        """`(1, m, width)`, the target's post-norm output of each.

        May be made with more rows, those of drafts that fell: they are cut off when this is
        read, so that it costs nobody who does not.
        """
        rows = self.tokens.shape[0]
        return self._hidden if self._hidden.shape[1] == rows else self._hidden[:, :rows]

    @property
    def ids(self) -> Sequence[int]:
        """The tokens on the host. A decoder has read them already; else this synchronises."""
        return cast("list[int]", self.tokens.tolist()) if self._ids is None else self._ids


class Proposer(Protocol):
    """Guesses the next tokens. Owns whatever cache it needs.

    Law: what it proposes depends on the committed text alone, not on drafts that were
    rejected, and not on who drafted in between.
    """

    @property
    def name(self) -> str:
        """A short name, unique among the proposers of one strategy."""

    def attach(self, target: SpeculativeModel, /) -> None:
        """Prepare to draft for `target`. Called once a decoder, and again for each text.

        Raises:
            SpeculateError: It cannot draft for this model, or cannot rewind its own.
        """

    def begin(self, position: int, /) -> None:
        """Forget everything: a text starts whose first `position` tokens stay unseen."""

    def position(self) -> int:
        """Length of the committed text, as far as this proposer was told."""

    def commit(self, commit: Commit, /) -> None:
        """Learn what the text really is: after each prefill chunk and after each round.

        Called whoever drafted. A draft of this proposer that is still in flight ends here.
        """

    def propose(self, newest: mx.array, limit: int, choose: Choose, /) -> Draft:
        """Guess what follows `newest`.

        Does not synchronise with the device.

        Args:
            newest: `(1,)`, the newest token: emitted, and not committed yet.
            limit: Most tokens to guess, at least 1.
            choose: How to pick a token from a row of logits.
        """

    def settle(self) -> None:
        """End the draft in flight, if any, and leave every cache at the committed text.

        Raises:
            Exception: Whatever a model raises. The proposer is then still consistent,
                and holds at most the committed text.
        """


@attrs.frozen
class Outlook:
    """The draft that a proposer would make now.

    Attributes:
        kind: Drafts of one kind have similar chances. A small number, at most 4095; 0 where it
            abstains.
        length: Tokens of it that are foreseen; 0 where it abstains. A draft may be longer.
    """

    kind: int
    length: int


@attrs.frozen
class Hindsight:
    """What drafts that could have been made would have been worth at one of their tokens.

    Attributes:
        kind: Of their outlooks.
        position: Of the token in these drafts, 0 for the first. Drafts that were wrong in
            front of it do not count.
        compared: Drafts whose token was compared with the text.
        right: How many of them were right there.
    """

    kind: int
    position: int
    compared: int
    right: int


@runtime_checkable
class Foresees(Proposer, Protocol):
    """A proposer that knows on the host what it would draft, and what that was worth.

    So a strategy learns how good its drafts are without asking for one, whoever drafts.

    Law: both depend on the committed text and its newest token alone, not on the rounds in
    which the text came.
    """

    def outlook(self) -> Outlook:
        """The draft it would make behind all that is known now. Does not synchronise.

        The text ends with `Commit.newest` where that was known, and else a token before the
        one that the next draft goes on from.
        """

    def hindsight(self) -> Sequence[Hindsight]:
        """What was found since the last call.

        Of the places behind each committed token of the generated text, those where it
        would have drafted; places in a prompt do not count. A token of the text is compared
        with every such draft that was right up to it, so that a sum over all calls does not
        depend on when they were made.
        """


@runtime_checkable
class LooksBack(Proposer, Protocol):
    """A proposer that can use tokens in front of its text, which the target read without it."""

    def look_back(self, ids: Sequence[int], /) -> None:
        """Learn what stands in front of the text.

        Called after `begin`, before the first commit, where the caller knows.

        Args:
            ids: Those that the text goes on from. They may be fewer than there are, or
                more than the caches hold, and nobody has checked them: what they say may
                cost acceptance and must not matter otherwise.
        """


@runtime_checkable
class CatchesUp(Proposer, Protocol):
    """A proposer that takes in what it missed only when it is asked for a draft again.

    So a strategy can tell what asking it costs. Who is never asked again never pays.
    """

    def behind(self) -> int:
        """Tokens that its next draft has to take in first, in a batch of their own.

        0 where there are few enough to share the draft's first step. Does not synchronise.
        """
