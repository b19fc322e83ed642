"""Top-n-sigma sampling, as a sampler of one's own.

Tokens stay whose logits are at most `n` standard deviations below the largest one, whatever the
temperature (Tang et al., "Top-n-sigma: Not All Logits Are You Need", arXiv 2411.07641).
"""

from collections.abc import Collection, Sequence
from typing import final

import mlx.core as mx

import speculate as sp
from speculate.protocols import Draft, DraftToken, Verification
from speculate.sampling import Mode, acceptance_rule


@final
class TopNSigma:
    """Draws tokens in any mode of `Sampling`.

    Args:
        n: Standard deviations to keep, at least 0.
        temperature: Above 0.
        seed: Of every sequence.
        mode: How drafts are verified.
    """

    supports_lookahead = True

    def __init__(
        self, n: float = 1.0, temperature: float = 1.0, seed: int = 0, mode: Mode = "coupled"
    ) -> None:
        self.seed = seed
        self._n, self._temperature = n, temperature
        self._mode: Mode = mode
        self.begin((), 0, ())

    def log_weights(self, logits: mx.array, positions: Sequence[int], /) -> mx.array:
        """Return what the tokens of each row are drawn by: the distribution is its softmax."""
        logits = logits.astype(mx.float32)
        lowest = logits.max(axis=-1, keepdims=True) - self._n * mx.std(logits, -1, keepdims=True)
        return mx.where(logits < lowest, -mx.inf, logits / self._temperature)

    def begin(self, history: Sequence[int], position: int, stop_tokens: Collection[int], /) -> None:
        self._rule = acceptance_rule(self, self._mode)
        self._next = position + 1  # the sequence position that the next row predicts

    def choose(self, logits: mx.array, index: int, /) -> DraftToken:
        return self._rule.choose(logits, self._next + index)

    def verify(self, last_token: mx.array, draft: Draft, logits: mx.array, /) -> Verification:
        positions = range(self._next, self._next + logits.shape[0])
        return self._rule.verify(logits, positions, draft)

    def commit(self, tokens: mx.array, /) -> None:
        self._next += tokens.shape[0]


if __name__ == "__main__":
    model, tokenizer = sp.load()
    sampler = TopNSigma(n=1.0, temperature=1.5, seed=7)
    print(sp.generate(model, tokenizer, "def parse(line):\n    ", sampling=sampler))
