"""A complete greedy loop: a draft model drafts, and `speculation` rolls back."""

from collections.abc import Iterator

import mlx.core as mx

import speculate as sp


def best(logits: mx.array) -> mx.array:
    """Return the most likely token of each row, by log-probabilities as mlx-lm does."""
    return mx.argmax(logits - mx.logsumexp(logits, axis=-1, keepdims=True), axis=-1)


def decode(
    target: sp.SpeculativeModel, draft: sp.SpeculativeModel, prompt: list[int], depth: int = 4
) -> Iterator[int]:
    """Yield tokens after a prompt of at least two, without end."""
    caches, draft_caches = target.make_cache(), draft.make_cache()
    target.forward(mx.array([prompt[:-1]]), caches)
    draft.forward(mx.array([prompt[:-1]]), draft_caches)
    last_token = mx.array([prompt[-1:]])
    with sp.speculation(caches, draft_caches) as window:
        while True:
            block = [last_token]
            for _ in range(depth):
                block.append(best(draft.forward(block[-1], draft_caches).logits))
            draft.forward(block[-1], draft_caches)  # so that both caches hold the same tokens
            fed = mx.concatenate(block, axis=1)
            own = best(target.forward(fed, caches).logits)
            accepted = (own[:, :-1] == fed[:, 1:]).astype(mx.int32)
            kept = 1 + int(mx.cumprod(accepted, axis=1).sum())
            window.keep(kept)
            last_token = own[:, kept - 1 : kept]
            yield from (int(token) for token in own[0, :kept])


if __name__ == "__main__":
    target, tokenizer = sp.load_demo("hybrid")
    tokens = decode(target, sp.load_demo("draft")[0], tokenizer.encode("def parse(line):\n    "))
    print(tokenizer.decode([token for token, _ in zip(tokens, range(64), strict=False)]))
