"""The contract of a proposer: draft the next tokens, and stay in step with the sequence."""

from collections.abc import Callable, Sequence
from typing import cast

import attrs
import mlx.core as mx
from typing_extensions import Protocol, runtime_checkable

from speculate.protocols.model import SpeculativeModel


@attrs.frozen(eq=False)
class Choice:
    """A token that was chosen for a draft.

    Attributes:
        token: `(1,)` id.
        law: `(1, vocabulary)` float32 log-probabilities that it was drawn from, after
            filters; `None` if verification does not need them.
    """

    token: mx.array
    law: mx.array | None = None


Choose = Callable[[mx.array, int], Choice]
"""`choose(logits (1, vocabulary), index)` chooses drafted token number `index` on the device."""


@attrs.frozen(eq=False)
class Draft:
    """Drafted tokens that may follow the last token.

    A draft cannot change the output, with one exception. Ids that the target does not have are
    rejected, and so is a token whose log-probabilities are not finite, do not sum to 1 or give
    it no probability. But the modes "rejection" and "block" verify drafts by these
    log-probabilities: a valid distribution that is not the one the token was drawn from biases
    the output, and this cannot be detected. Call `choose` once for each token of a draft, in
    order, and pass on its results unchanged.

    Attributes:
        tokens: `(k,)` ids, on the device; `k` may be less than the limit, even 0.
        laws: For each token, the log-probabilities that it was drawn from, as returned by
            `Choose`: `(1, n)` float32, or `None` for a token that was not drawn at random.
            Empty if no token was drawn at random.
    """

    tokens: mx.array
    laws: Sequence[mx.array | None] = ()


@attrs.frozen
class Verdict:
    """The outcome of a draft.

    Attributes:
        proposer: Name of the proposer that drafted.
        drafted: Number of drafted tokens.
        accepted: Number of them that were accepted and emitted.
    """

    proposer: str
    drafted: int
    accepted: int


@attrs.frozen(eq=False)
class Commit:
    """Tokens that the target has consumed and that will not be rolled back.

    Attributes:
        tokens: `(m,)` ids, in order.
        verdict: The outcome of this round's draft; `None` in prefill and without a draft.
        newest: The id that was emitted after them and is not consumed yet, if it is known;
            `None` in prefill and when the next forward was launched as lookahead.
    """

    tokens: mx.array
    _hidden: mx.array
    verdict: Verdict | None = None
    _ids: Sequence[int] | None = None
    newest: int | None = None

    @property
    def hidden(self) -> mx.array:
        """The target's post-norm outputs of the tokens, `(1, m, width)`.

        The array may hold more rows, those of rejected drafts. They are cut off on access, so
        that proposers that do not read hidden states do not pay for the slice.
        """
        rows = self.tokens.shape[0]
        return self._hidden if self._hidden.shape[1] == rows else self._hidden[:, :rows]

    @property
    def ids(self) -> Sequence[int]:
        """The tokens on the host. Synchronises, unless the decoder has read them already."""
        return cast("list[int]", self.tokens.tolist()) if self._ids is None else self._ids


class Proposer(Protocol):
    """Drafts the next tokens. Owns the caches it needs.

    Contract: a draft depends on the committed sequence alone, not on rejected drafts and not on
    which proposers drafted in between.
    """

    @property
    def name(self) -> str:
        """A short name, unique among the proposers of one strategy."""

    def attach(self, target: SpeculativeModel, /) -> None:
        """Prepare to draft for `target`. Called once per decoder, and again for each sequence.

        Raises:
            SpeculateError: It cannot draft for this model, or cannot rewind its own model.
        """

    def begin(self, position: int, /) -> None:
        """Start a new sequence, whose first `position` tokens are not passed to `commit`."""

    def position(self) -> int:
        """Length of the committed sequence, as far as this proposer was notified."""

    def commit(self, commit: Commit, /) -> None:
        """Take in committed tokens, after each prefill chunk and after each round.

        Called regardless of the proposer that drafted. Ends a draft of this proposer that is
        still in flight.
        """

    def propose(self, newest: mx.array, limit: int, choose: Choose, /) -> Draft:
        """Draft the tokens after `newest`.

        Does not synchronise with the device.

        Args:
            newest: `(1,)`, the last token: emitted, and not committed yet.
            limit: Most tokens to draft, at least 1.
            choose: Chooses a token from a row of logits.
        """

    def settle(self) -> None:
        """End the draft in flight, if any, and leave every cache at the committed sequence.

        Raises:
            Exception: Any error of a model. The proposer is then still consistent, and holds
                at most the committed sequence.
        """


@attrs.frozen
class Outlook:
    """The draft that a proposer would make now.

    Attributes:
        kind: A class of drafts with similar acceptance rates, from 1 to 4095; 0 if it would
            not draft.
        length: Number of forecast tokens; 0 if it would not draft. A draft may be longer.
    """

    kind: int
    length: int


@attrs.frozen
class Hindsight:
    """The score of hypothetical drafts of one kind at one position.

    Attributes:
        kind: Kind of these drafts; see `Outlook`.
        position: Position of the token in the draft, 0 for the first. Drafts that were wrong
            at an earlier position do not count.
        compared: Number of drafts whose token was compared with the sequence.
        right: Number of them whose token was equal.
    """

    kind: int
    position: int
    compared: int
    right: int


@runtime_checkable
class Foresees(Proposer, Protocol):
    """A proposer that forecasts its draft on the host, and scores the drafts it did not make.

    A strategy thus learns its acceptance rate without asking for a draft, regardless of the
    proposer that drafts.

    Contract: both depend on the committed sequence and its last token alone, not on the rounds
    in which the sequence was decoded.
    """

    def outlook(self) -> Outlook:
        """Forecast the draft after all tokens known so far. Does not synchronise.

        The known tokens end with `Commit.newest`. If that is `None`, the last token is not known
        yet, and the forecast is for the place before it.
        """

    def hindsight(self) -> Sequence[Hindsight]:
        """Scores since the last call.

        Covers every position of the generated sequence at which it would have drafted;
        positions in a prompt do not count. Each generated token is compared with every such
        draft that was right up to that token, so that sums over all calls do not depend on when
        the calls were made.
        """


@runtime_checkable
class LooksBack(Proposer, Protocol):
    """A proposer that can use the tokens before its sequence, which only the target has read."""

    def look_back(self, ids: Sequence[int], /) -> None:
        """Take in the tokens before the sequence.

        Called after `begin` and before the first commit, if the caller knows the tokens.

        Args:
            ids: The tokens that the sequence continues. There may be fewer than exist, or more
                than the caches hold, and they are not validated: wrong ids may lower the
                acceptance rate and must have no other effect.
        """


@runtime_checkable
class CatchesUp(Proposer, Protocol):
    """A proposer that feeds its backlog to its model only when it is asked for a draft again.

    A strategy can then include the backlog in the cost of a draft. A proposer that is not asked
    again never feeds its backlog.
    """

    def behind(self) -> int:
        """Number of tokens to feed before the next draft, in a batch of their own.

        0 if the backlog is short enough to share the first step of the draft. Does not
        synchronise.
        """
