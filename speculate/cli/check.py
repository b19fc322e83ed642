"""Whether a head and a model belong together: how often the first draft would be accepted."""

from __future__ import annotations

from typing import Final, cast, final, get_args

import attrs
import mlx.core as mx

from speculate.checkpoints.norms import Convention
from speculate.cli.sources import find, is_bundled
from speculate.errors import OptionError
from speculate.loading import demo_prompt, load, load_mtp_head
from speculate.protocols import MTPHead, SpeculativeModel

TOKENS: Final = 48
"""Tokens of the model's own text that the head has to guess."""

PROMPT_TOKENS: Final = 96
TOO_FEW: Final = 0.05
SUSPICIOUS: Final = 0.2
"""Below this part the two conventions are compared."""

BEATEN: Final = 2.0
"""How much better the other one must be to say that this one is wrong."""


@final
@attrs.frozen
class Check:
    """How a head did.

    Attributes:
        tokens: That it had to guess.
        acceptance: Part of them that it guessed, as the first draft after each true token.
        by_convention: The same with all norms taken to be stored one way; empty where the
            acceptance gives no cause for it.
    """

    tokens: int
    acceptance: float
    by_convention: dict[str, float]

    @property
    def passed(self) -> bool:
        """Whether this is a head that drafts for this model, read as it was meant."""
        best = max(self.by_convention.values(), default=0.0)
        return self.acceptance >= max(TOO_FEW, best / BEATEN)

    def lines(self) -> list[str]:
        """The result, for people."""
        found = [f"{self.acceptance:.0%} of first drafts accepted, over {self.tokens} tokens"]
        if not self.by_convention:
            return found
        found.append("Usually so few mean that the head's norms were taken for the other")
        found.append("convention, or that the head was trained for another model.")
        for convention, acceptance in self.by_convention.items():
            found.append(f"with all its norms stored as {convention}: {acceptance:.0%}")
        best = max(self.by_convention, key=lambda name: self.by_convention[name])
        if self.by_convention[best] < TOO_FEW:
            found.append("Neither helps, so it is the pairing: look for this model's own head.")
        elif not self.passed:
            found.append(f'Load it with load_mtp_head(..., norms="{best}").')
        return found


def check_head(name: str | None, head: str | None, norms: Convention | None = None) -> Check:
    """Load a model and a head, and let the head guess the model's own greedy text.

    Args:
        name: The model, as on the command line.
        head: Where the head is; by default where the model is.
        norms: How the head's norms are stored, if that is not to be found out.

    Raises:
        CheckpointError: There is no model or no head, or the two do not fit.
    """
    folder, unpacked = find(name), is_bundled(name)
    if not folder.is_dir():
        raise OptionError(f"{folder}: is a head alone. Name its model, and this file with --head")
    model, tokenizer = load(folder, head=False, dequantize=unpacked)
    place = folder if head is None else find(head, head_only=True)

    def attempt(convention: Convention | None) -> float:
        loaded = load_mtp_head(place, model, norms=convention, dequantize=unpacked)
        return acceptance(model, loaded, ids)

    ids = cast("list[int]", tokenizer.encode(demo_prompt()))[:PROMPT_TOKENS]
    found = attempt(norms)
    conventions = () if found >= SUSPICIOUS else get_args(Convention)
    return Check(TOKENS, found, {name: attempt(name) for name in conventions})


def acceptance(
    model: SpeculativeModel, head: MTPHead, prompt: list[int], tokens: int = TOKENS
) -> float:
    """Part of the tokens after a prompt that a head guesses from the true ones before.

    Args:
        model: The target.
        head: Its head.
        prompt: Ids, two at least.
        tokens: How many tokens of greedy text to go through.
    """
    hidden, ids = _text(model, prompt, tokens)
    # Row i pairs the hidden state of token i with token i + 1, and guesses token i + 2.
    first, cache = len(prompt) - 2, head.make_cache()
    if first:
        mx.eval(head.step(hidden[:, :first], ids[:, 1 : first + 1], cache).hidden)
    out = head.step(hidden[:, first:-1], ids[:, first + 1 : -1], cache)
    right = mx.argmax(out.logits, axis=-1) == ids[:, first + 2 :]
    return cast(float, right.astype(mx.float32).mean().item())


def _text(model: SpeculativeModel, prompt: list[int], tokens: int) -> tuple[mx.array, mx.array]:
    """A prompt and its greedy continuation: hidden states `(1, T, width)`, ids `(1, T)`."""
    cache, fed = model.make_cache(), mx.array([prompt])
    hidden, ids = [], [fed]
    for _ in range(tokens):
        out = model.forward(fed, cache)
        fed = mx.argmax(out.logits[:, -1:], axis=-1)
        mx.eval(fed, out.hidden)
        hidden.append(out.hidden)
        ids.append(fed)
    return mx.concatenate(hidden, axis=1), mx.concatenate(ids, axis=1)
