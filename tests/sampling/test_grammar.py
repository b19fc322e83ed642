"""A real constraint, llguidance's JSON schema matcher, holds under drafting."""

from __future__ import annotations

import json
from functools import cache
from typing import Final, Self, final

import mlx.core as mx
import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from speculate import Decoder, Sampling, Token
from speculate.sampling.options import MODES, Mode
from tests.support import reference, tiny
from tests.support.drafters import PROMPT, Case, headed, strategy_for
from tests.support.table_models import floats, integer

DRAFTERS: Final = ("mtp 3", "cousin 4", "right 5", "wrong by turns 4", "switching")
END: Final = tiny.VOCAB - 1
LETTERS: Final = b'{}[]",:. 0123456789abcdefghijklmnopqrstuvwxyz-'
WORDS: Final = (b'{"', b'": ', b'"name"', b'"age"', b'", "', b"true", b"null", b"ed", b"an", b"42")
SCHEMA: Final = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["a", "bed", "can"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@final
class Vocabulary:
    """Letters, a few pieces of JSON, tokens that mean nothing, and an end."""

    eos_token_id = END
    bos_token_id = None
    special_token_ids = (END,)

    def __init__(self) -> None:
        known = [*(bytes([letter]) for letter in LETTERS), *WORDS]
        unused = [f"<{id_}>".encode() for id_ in range(len(known), END)]
        self.tokens = [*known, *unused, b"<end>"]

    def __call__(self, text: bytes) -> list[int]:
        return [self.tokens.index(bytes([letter])) for letter in text]


@final
class Grammar:
    """Lets only through what a matcher allows."""

    def __init__(self, matcher: LLMatcher, *, begun: bool = False) -> None:
        self._matcher = matcher
        self._begun = begun

    def __call__(self, tokens: mx.array, logits: mx.array, /) -> mx.array:
        if self._begun and not self._matcher.consume_token(integer(tokens[-1])):
            raise RuntimeError(self._matcher.get_error())
        self._begun = True
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.unpackbits(bits, bitorder="little")[: logits.shape[-1]]
        return mx.where(mx.array(allowed) == 1, logits, -mx.inf)

    def fork(self) -> Self:
        return type(self)(self._matcher.deep_copy(), begun=self._begun)


@cache
def vocabulary() -> Vocabulary:
    return Vocabulary()


@cache
def matcher() -> LLMatcher:
    """A fresh matcher; copy it before it is used."""
    tokenizer = LLTokenizer(TokenizerWrapper(vocabulary()), n_vocab=tiny.VOCAB)
    grammar = LLMatcher.grammar_from_json_schema(SCHEMA, overrides={"whitespace_flexible": False})
    found = LLMatcher(tokenizer, grammar)
    assert not found.is_error(), found.get_error()
    return found


def decoded(
    family: str, who: str, sampling: Sampling, text: tuple[int, ...] = ()
) -> tuple[list[Token], Decoder]:
    case = Case(family, 0.0, "plain")
    whole = [*PROMPT, *text]
    processors = [Grammar(matcher().deep_copy())]
    decoder = Decoder(headed(case, whole), strategy_for(who, case, whole), sampling, processors)
    return list(decoder.generate(PROMPT, 80, stop_tokens=[END])), decoder


@cache
def plain(family: str, sampling: Sampling) -> tuple[int, ...]:
    return tuple(reference.ids_of(decoded(family, "nobody", sampling)[0]))


def check_json(tokens: list[int]) -> None:
    assert tokens[-1] == END
    value = json.loads(b"".join(vocabulary().tokens[token] for token in tokens[:-1]))
    assert value.keys() == {"name", "age", "tags"}
    assert isinstance(value["name"], str)
    assert value["age"] in range(100)
    assert set(value["tags"]) <= {"a", "bed", "can"}


@pytest.mark.parametrize("who", DRAFTERS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_json_comes_out_and_is_plain_decoding_s(temperature: float, who: str) -> None:
    sampling = Sampling(temperature=temperature, seed=3)
    text = plain("qwen3_5", sampling)
    tokens, decoder = decoded("qwen3_5", who, sampling, text)
    check_json(reference.ids_of(tokens))
    assert tuple(reference.ids_of(tokens)) == text
    assert decoder.stats.draft_tokens > 0
    if who == "right 5":
        assert decoder.stats.accepted_tokens == decoder.stats.draft_tokens


@pytest.mark.parametrize("who", ["mtp 3", "cousin 4"])
@pytest.mark.parametrize("mode", MODES)
def test_json_comes_out_in_every_mode(mode: Mode, who: str) -> None:
    sampling = Sampling(temperature=1.2, seed=7, mode=mode)
    check_json(reference.ids_of(decoded("qwen3_5", who, sampling)[0]))


def test_without_the_grammar_it_is_not_json() -> None:
    text = reference.truth("qwen3_5", PROMPT, 24)
    with pytest.raises(ValueError):
        json.loads(b"".join(vocabulary().tokens[token] for token in text))


def test_scores_of_what_the_grammar_forbids_are_minus_infinity() -> None:
    tokens, _ = decoded("qwen3_5", "cousin 4", Sampling())
    first = floats(tokens[0].logprobs)
    opening = [vocabulary().tokens.index(piece) for piece in (b"{", b'{"')]
    assert {id_ for id_, score in enumerate(first) if score > -mx.inf} <= set(opening)
