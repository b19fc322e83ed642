"""The contract of a proposer: draft the next tokens, and stay in step with the sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import attrs
import mlx.core as mx
from typing_extensions import Protocol

from speculate.protocols.model import Forward, SpeculativeModel, required


@attrs.frozen(eq=False)
class DraftToken:
    """A token that was chosen for a draft.

    Attributes:
        token: `(1,)` id.
        logprobs: `(1, vocabulary)` float32 log-probabilities that it was drawn from, after
            filters; `None` if verification does not need them.
    """

    token: mx.array
    logprobs: mx.array | None = None


DraftSampler = Callable[[mx.array, int], DraftToken]
"""`choose(logits (1, vocabulary), index)` chooses drafted token number `index` on the device."""


@attrs.frozen(eq=False)
class Draft:
    """Drafted tokens that may follow the last token.

    A draft cannot change the tokens of greedy and coupled decoding, nor the distribution of the
    output in any mode, with one exception. Ids that the target does not have are
    rejected, and so is a token whose log-probabilities are not finite, do not sum to 1 or give
    it no probability. But the modes "rejection" and "block" verify drafts by these
    log-probabilities: a valid distribution that is not the one the token was drawn from biases
    the output, and this cannot be detected. Call `choose` once for each token of a draft, in
    order, and pass on its results unchanged.

    Attributes:
        tokens: `(k,)` ids, on the device; `k` may be less than the limit, even 0.
        logprobs: For each token, the log-probabilities that it was drawn from, as returned by
            `DraftSampler`: `(1, n)` float32, or `None` for a token that was not drawn at random.
            Empty if no token was drawn at random.
        survival: `(k,)` float32, the drafter's own estimate of the probability that each token
            and all before it are accepted; `None` if it has none. It has no effect on the output.
    """

    tokens: mx.array
    logprobs: Sequence[mx.array | None] = ()
    survival: mx.array | None = None


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
        bonus: The id that was emitted after them and is not consumed yet, if it is known;
            `None` in prefill and when the next forward was launched as lookahead.
    """

    tokens: mx.array
    _hidden: mx.array | None = None
    verdict: Verdict | None = None
    _ids: Sequence[int] | None = None
    bonus: int | None = None
    _taps: mx.array | None = None
    _model: str = "this model"

    @classmethod
    def of(
        cls,
        out: Forward,
        ids: Sequence[int],
        verdict: Verdict | None = None,
        bonus: int | None = None,
    ) -> Commit:
        """Make the commit of `ids`, which `out` fed first. Other rows are of rejected drafts."""
        # A new array: slicing the fed tokens would be work for the device.
        tokens = mx.array(list(ids), dtype=mx.uint32)
        hidden = out.hidden if out.has_hidden else None
        return cls(tokens, hidden, verdict, ids, bonus, out.taps, out.model)

    @property
    def hidden(self) -> mx.array:
        """The target's post-norm outputs of the tokens, `(1, m, width)`.

        Rows of rejected drafts are cut off on access, so that proposers that do not read hidden
        states do not pay for the slice.

        Raises:
            SpeculateError: The target does not return them.
        """
        return self._rows(required(self._hidden, self._model, "hidden states"))

    @property
    def taps(self) -> mx.array:
        """The target's outputs after the layers of `SupportsTaps.taps`, `(1, m, taps * width)`.

        Raises:
            SpeculateError: The target does not return them.
        """
        return self._rows(required(self._taps, self._model, "taps"))

    def _rows(self, array: mx.array) -> mx.array:
        count = self.tokens.shape[0]
        return array if array.shape[1] == count else array[:, :count]

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

    def begin(self, position: int, history: Sequence[int] = (), /) -> None:
        """Start a new sequence, whose first `position` tokens are not passed to `commit`.

        Args:
            position: Tokens that only the target has read.
            history: Their ids, if the caller knows them. There may be fewer than `position`, or
                more, and they are not validated: wrong ids may lower the acceptance rate and
                must have no other effect.
        """

    def position(self) -> int:
        """Length of the committed sequence, as far as this proposer was notified."""

    def commit(self, commit: Commit, /) -> None:
        """Take in committed tokens, after each prefill chunk and after each round.

        Called regardless of the proposer that drafted. Ends a draft of this proposer that is
        still in flight.
        """

    def propose(self, last_token: mx.array, limit: int, choose: DraftSampler, /) -> Draft:
        """Draft the tokens after `last_token`.

        Does not synchronise with the device.

        Args:
            last_token: `(1,)`, the last token: emitted, and not committed yet.
            limit: Most tokens to draft, at least 1.
            choose: Chooses a token from a row of logits.
        """

    def settle(self) -> None:
        """End the draft in flight, if any, and leave every cache at the committed sequence.

        Raises:
            Exception: Any error of a model. The proposer is then still consistent, and holds
                at most the committed sequence.
        """
