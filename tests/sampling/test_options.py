"""Options that cannot be meant are refused, by name."""

from __future__ import annotations

from typing import Any, Final

import pytest

from speculate import Sampling
from speculate.errors import OptionError

WRONG: Final[list[tuple[str, Any]]] = [
    ("temperature", -0.1),
    ("temperature", float("nan")),
    ("temperature", float("inf")),
    ("top_p", -0.1),
    ("top_p", 1.1),
    ("top_k", -1),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("min_tokens_to_keep", 0),
    ("xtc_probability", -0.1),
    ("xtc_probability", 1.1),
    ("xtc_threshold", -0.1),
    ("xtc_threshold", 0.6),
    ("repetition_penalty", -1.0),
    ("repetition_context_size", 0),
    ("presence_context_size", 0),
    ("frequency_context_size", -3),
    ("mode", "typical"),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_an_option_out_of_range_is_refused_by_its_name(name: str, value: object) -> None:
    options: dict[str, Any] = {name: value}
    with pytest.raises(OptionError, match=name) as caught:
        Sampling(**options)
    assert repr(value) in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_options_do_not_change_and_are_named() -> None:
    with pytest.raises(AttributeError):
        Sampling().temperature = 1.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        Sampling(0.7)  # type: ignore[call-arg]


def test_the_default_is_greedy_and_every_edge_of_a_range_is_allowed() -> None:
    assert Sampling().temperature == 0
    assert Sampling().mode == "coupled"
    Sampling(temperature=1e-3, top_p=0.0, min_p=0.0, xtc_probability=1.0, xtc_threshold=0.5)
    Sampling(top_p=1.0, min_p=1.0, xtc_threshold=0.0, repetition_penalty=0.0, seed=-1)
