"""A complete greedy loop of one's own: a draft model guesses, and `speculation` takes back."""

from collections.abc import Iterator

import mlx.core as mx

import speculate as sp


def best(logits: mx.array) -> mx.array:
    """The most likely token of each row, as mlx-lm takes it."""
    return mx.argmax(logits - mx.logsumexp(logits, axis=-1, keepdims=True), axis=-1)


def decode(
    target: sp.SpeculativeModel, draft: sp.SpeculativeModel, prompt: list[int], depth: int = 4
) -> Iterator[int]:
    """Tokens behind a prompt of two or more, for as long as the caller wants some."""
    caches, draft_caches = target.make_cache(), draft.make_cache()
    target.forward(mx.array([prompt[:-1]]), caches)
    draft.forward(mx.array([prompt[:-1]]), draft_caches)
    newest = mx.array([prompt[-1:]])
    with sp.speculation(caches, draft_caches) as window:
        while True:
            block = [newest]
            for _ in range(depth):
                block.append(best(draft.forward(block[-1], draft_caches).logits))
            draft.forward(block[-1], draft_caches)  # so that both are fed the same
            fed = mx.concatenate(block, axis=1)
            own = best(target.forward(fed, caches).logits)
            right = (own[:, :-1] == fed[:, 1:]).astype(mx.int32)
            kept = 1 + int(mx.cumprod(right, axis=1).sum())
            window.keep(kept)
            newest = own[:, kept - 1 : kept]
            yield from (int(token) for token in own[0, :kept])


if __name__ == "__main__":
    target, tokenizer = sp.load_demo("hybrid")
    tokens = decode(target, sp.load_demo("draft")[0], tokenizer.encode("def parse(line):\n    "))
    print(tokenizer.decode([token for token, _ in zip(tokens, range(64), strict=False)]))
