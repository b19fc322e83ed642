"""Optional capabilities of caches, models, proposers and strategies, one protocol each."""

from collections.abc import Callable, Sequence

import attrs
from typing_extensions import Protocol, runtime_checkable

from speculate.protocols.cache import Entries, RecordsRollback
from speculate.protocols.proposer import Proposer
from speculate.protocols.strategy import Costs, Strategy


@attrs.frozen(eq=False)
class DeferredState:
    """A rewind that is recorded, and carried out only when the entries are read.

    Attributes:
        restore: The layer's record: `restore(m)` returns the entries after the first `m`
            tokens of a block.
        num_tokens: The `m` to restore.
    """

    restore: Callable[[int], Entries]
    num_tokens: int

    def entries(self) -> Entries:
        """Carry out the rewind and return the entries."""
        return self.restore(self.num_tokens)


@runtime_checkable
class SupportsDeferredRollback(RecordsRollback, Protocol):
    """A state cache that defers a rewind, so that its layer may continue without carrying it out.

    Contract: the next entries are the same, bit for bit, whether a layer reads the entries or
    continues from `deferred()`.
    """

    def deferred(self) -> DeferredState | None:
        """The deferred rewind, if any. A layer that continues from it calls `replace`."""

    def replace(self, entries: Entries, /) -> None:
        """Write all entries. A deferred rewind is then never carried out."""

    def record_rollback(
        self,
        num_tokens: int,
        restore: Callable[[int], Entries],
        snapshot: Entries | DeferredState,
        /,
    ) -> None:
        """As in `RecordsRollback`; `snapshot` may itself be a deferred rewind."""


@attrs.frozen
class Forecast:
    """The draft that a proposer would make now.

    Attributes:
        bucket: A class of drafts with similar acceptance rates, from 1 to 4095; 0 if it would
            not draft.
        length: Number of forecast tokens; 0 if it would not draft. A draft may be longer.
    """

    bucket: int
    length: int


@attrs.frozen
class DraftScore:
    """The score of hypothetical drafts of one bucket at one position.

    Attributes:
        bucket: Class of these drafts; see `Forecast`.
        position: Position of the token in the draft, 0 for the first. Drafts that were wrong
            at an earlier position do not count.
        compared: Number of drafts whose token was compared with the sequence.
        right: Number of them whose token was equal.
    """

    bucket: int
    position: int
    compared: int
    right: int


@runtime_checkable
class SupportsForecast(Proposer, Protocol):
    """A proposer that forecasts its draft on the host, and scores the drafts it did not make.

    A strategy thus learns its acceptance rate without asking for a draft, regardless of the
    proposer that drafts.

    Contract: both depend on the committed sequence and its last token alone, not on the rounds
    in which the sequence was decoded.
    """

    def forecast(self) -> Forecast:
        """Forecast the draft after all tokens known so far. Does not synchronise.

        The known tokens end with `Commit.bonus`. If that is `None`, the last token is not known
        yet, and the forecast is for the place before it.
        """

    def scores(self) -> Sequence[DraftScore]:
        """Scores since the last call.

        Covers every position of the generated sequence at which it would have drafted;
        positions in a prompt do not count. Each generated token is compared with every such
        draft that was right up to that token, so that sums over all calls do not depend on when
        the calls were made.
        """


@runtime_checkable
class SupportsFreeDrafts(Proposer, Protocol):
    """A proposer whose drafts may take no forward of a model, such as a lookup."""

    @property
    def free(self) -> bool:
        """Whether a draft costs next to nothing, so that its cost need not be measured."""


@runtime_checkable
class SupportsBacklog(Proposer, Protocol):
    """A proposer that may feed committed tokens to its model later, with its next draft.

    A strategy can then include the backlog in the cost of a draft.
    """

    def backlog(self) -> int:
        """Number of tokens to feed before the next draft, in a batch of their own.

        0 if the backlog is short enough to share the first step of the draft. Does not
        synchronise.
        """


@runtime_checkable
class SupportsTaps(Proposer, Protocol):
    """A proposer that reads the target's outputs after chosen layers, by `Commit.taps`."""

    @property
    def taps(self) -> Sequence[int]:
        """Indices of these layers, 0 for the first, in the order of the concatenated widths."""


@runtime_checkable
class SupportsFingerprint(Protocol):
    """A model, a head or a proposer whose measured costs can be stored under a name."""

    @property
    def fingerprint(self) -> str:
        """A key that is the same in every process for weights of the same shapes and formats."""


@runtime_checkable
class SupportsCosts(Strategy, Protocol):
    """A strategy that uses the measured costs of forwards and drafts."""

    def needs_costs(self, key: str | None, context: int, remaining: int | None, /) -> bool:
        """Whether to measure costs now. Called once per sequence, before its second round.

        Measuring thus never delays the first token, and the first plan is made without costs.

        Args:
            key: Identifies the target, its proposers and this machine; `None` if the model has
                no fingerprint.
            context: Length of the sequence, in tokens.
            remaining: Most tokens still to be emitted; `None` without a limit.
        """

    def set_costs(self, costs: Costs, /) -> None:
        """Receive the costs that were measured because they were missing."""


@runtime_checkable
class SupportsFailover(Strategy, Protocol):
    """A strategy that can continue without a proposer that raised."""

    def failed(self, proposer: Proposer, error: Exception, /) -> None:
        """`proposer` raised `error`; it is not notified or asked again in this sequence.

        With the next `begin` it is active again.
        """
