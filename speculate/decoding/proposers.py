"""The proposers of one text: what they are told, what they draft, and who still takes part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import final

import mlx.core as mx

from speculate.errors import SpeculateError
from speculate.protocols import (
    Choose,
    Commit,
    Draft,
    LooksBack,
    Plan,
    Proposer,
    SpeculativeModel,
    Strategy,
    ToleratesFailures,
)


@final
class Drafting:
    """Keeps all proposers of a strategy at the same text.

    One that raises ends the run, unless the strategy can do without: then it is left alone
    for the rest of the text.

    Args:
        strategy: Who may draft.
        target: For whom.
    """

    def __init__(self, strategy: Strategy, target: SpeculativeModel) -> None:
        self._strategy = strategy
        self._target = target
        self._left = list(strategy.proposers)
        self._called = 0
        self._returned = 0

    @property
    def interrupted(self) -> bool:
        """Whether a proposer was kept from finishing what it did: it may be in any state."""
        return self._called != self._returned

    def begin(self, position: int, known: int | None, history: Sequence[int]) -> None:
        """A text goes on behind `position` tokens.

        Args:
            position: Tokens that are in the caches.
            known: The same, where these are the tokens that the proposers were told; they
                go on where they are.
            history: Ids of earlier turns, for those that begin anew and can use them.
        """
        if isinstance(self._strategy, ToleratesFailures):
            self._strategy.begin()
        for proposer in list(self._left):
            proposer.attach(self._target)
            with self.tolerated(proposer):
                if known is None or proposer.position() != known:
                    _begin(proposer, position, history)

    def takes_part(self, proposer: Proposer) -> bool:
        """Whether it did not raise in this text."""
        return any(proposer is one for one in self._left)

    def begin_again(self, position: int, history: Sequence[int]) -> None:
        """Have every proposer forget a text that was given up, as if it had not begun.

        One that fails is at another position than its text, and begins again next time.
        """
        for proposer in self._left:
            with suppress(Exception):
                _begin(proposer, position, history)

    def tell(self, commit: Commit, position: int | None = None) -> None:
        """Let everyone know what the text is, whoever drafted.

        Args:
            commit: What became text.
            position: Where it begins, after a failure: who missed something before is left
                behind, where it begins anew with the next text.
        """
        for proposer in list(self._left):
            if position is not None and proposer.position() != position:
                continue
            # In every round: to enter and leave a context takes longer than most of what is told.
            self._called += 1
            try:
                proposer.commit(commit)
                self._returned += 1
            except Exception as error:
                self._returned += 1
                self._leave_alone(proposer, error)

    def settle(self) -> None:
        """Have everyone leave their caches at the committed text.

        Raises:
            Exception: What the first of those that failed raised, after all were asked.
        """
        failures = []
        for proposer in list(self._left):
            try:
                with self.tolerated(proposer):
                    proposer.settle()
            except Exception as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    def draft(self, plan: Plan, newest: mx.array, depth: int, choose: Choose) -> Draft:
        """Have the planned proposer draft, and check that it kept to the limit.

        Returns:
            Its draft; an empty one from a proposer that takes part no longer.

        Raises:
            SpeculateError: Nobody was planned, or the draft cannot be used.
        """
        proposer = plan.proposer
        if proposer is None:
            raise SpeculateError(f"the strategy planned {plan.depth} drafts by nobody")
        if self.takes_part(proposer):
            with self.tolerated(proposer):
                return checked_draft(proposer, proposer.propose(newest, depth, choose), depth)
        return Draft(mx.zeros((0,), dtype=mx.uint32))

    @contextmanager
    def tolerated(self, proposer: Proposer) -> Iterator[None]:
        """Go on without `proposer` if it raises meanwhile, where the strategy can."""
        self._called += 1
        try:
            yield
            self._returned += 1
        except Exception as error:
            self._returned += 1
            self._leave_alone(proposer, error)

    def _leave_alone(self, proposer: Proposer, error: Exception) -> None:
        """Go on without a proposer that raised; where the strategy cannot, raise it again."""
        if not isinstance(self._strategy, ToleratesFailures):
            raise error
        self._left.remove(proposer)
        with suppress(Exception):
            # Whatever state it is in: at this position the next text begins it anew.
            proposer.begin(0)
        self._strategy.failed(proposer, error)


def _begin(proposer: Proposer, position: int, history: Sequence[int]) -> None:
    proposer.begin(position)
    if history and isinstance(proposer, LooksBack):
        proposer.look_back(history)


def checked_draft(proposer: Proposer, draft: object, depth: int) -> Draft:
    """What a proposer gave, if it is a draft, on its way to be computed.

    Checks what the host can know. What the numbers are is looked at where they are used, on the
    device: see `in_range`, and the rules that judge by a law.

    Raises:
        SpeculateError: It is none, or of more than `depth` tokens.
    """
    name = f"proposer '{proposer.name}'"
    if not isinstance(draft, Draft):
        raise SpeculateError(f"{name} gave no Draft but a {type(draft).__name__}")
    tokens: object = draft.tokens
    if not isinstance(tokens, mx.array):
        kind = type(tokens).__name__
        raise SpeculateError(f"{name} drafted a {kind}: Draft.tokens is an mx.array")
    if tokens.ndim != 1 or not mx.issubdtype(tokens.dtype, mx.integer):
        raise SpeculateError(
            f"{name} drafted {tokens.shape} {tokens.dtype}: a draft is one row of ids, (k,) "
            "integers"
        )
    if tokens.shape[0] > depth:
        raise SpeculateError(
            f"{name} drafted {tokens.shape[0]} tokens, at most {depth} were asked for"
        )
    _check_laws(name, draft)
    # Arrays that cannot be computed, of another thread for example, fail here and in its name.
    mx.async_eval(tokens, *[law for law in draft.laws if law is not None])
    return draft


def _check_laws(name: str, draft: Draft) -> None:
    laws: object = draft.laws
    if not isinstance(laws, Sequence):
        kind = type(laws).__name__
        raise SpeculateError(f"{name} gave its laws as a {kind}: Draft.laws is a list")
    count = draft.tokens.shape[0]
    if len(laws) not in (0, count):
        raise SpeculateError(
            f"{name} gave {len(laws)} laws for {count} tokens: Draft.laws is empty, or has the law "
            "of each token, None for one that was certain"
        )
    for law in laws:
        if law is None:
            continue
        if not isinstance(law, mx.array):
            raise SpeculateError(f"{name} gave a {type(law).__name__} as the law of a token")
        if law.ndim != 2 or law.shape[0] != 1 or not law.shape[1] or law.dtype != mx.float32:
            raise SpeculateError(
                f"{name} gave a law {law.shape} {law.dtype}: a law is (1, vocabulary) "
                "log-probabilities in float32, as choose gives it"
            )


def in_range(draft: Draft, columns: int) -> Draft:
    """A draft in a model's ids, each with the law of what it is now.

    MLX does not check the ids that it looks up, and one out of range could crash the process: it
    becomes the last id. What a law gives to ids from there on becomes the last one's, so that it
    stays the law of the token. A token for which a law has no column was not drawn from it, and
    the law becomes one that no sampler accepts.

    Args:
        draft: At least one token, of any integers.
        columns: The model's ids.
    """
    tokens = draft.tokens
    # As 64 bits without a sign, a negative id is a large one.
    ids = tokens if tokens.dtype == mx.uint32 else tokens.astype(mx.uint64)
    laws = [
        law if law is None else _over(law, ids[index], columns)
        for index, law in enumerate(draft.laws)
    ]
    return Draft(mx.minimum(ids, columns - 1).astype(mx.uint32), laws)


def _over(law: mx.array, id_: mx.array, columns: int) -> mx.array:
    """The law `(1, columns)` of a token, given one over more or fewer ids."""
    width = law.shape[1]
    if width > columns:
        last = mx.logsumexp(law[:, columns - 1 :], axis=-1, keepdims=True)
        law = mx.concatenate([law[:, : columns - 1], last], axis=-1)
    elif width < columns:
        law = mx.pad(law, [(0, 0), (0, columns - width)], constant_values=-mx.inf)
    return mx.where(id_ < width, law, mx.nan)
