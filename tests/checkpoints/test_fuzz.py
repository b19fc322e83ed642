"""Whatever bytes a file has, its header is read or refused by name, and nothing else happens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculate.checkpoints.safetensors import read_header
from speculate.errors import CheckpointError


def safetensors(text: bytes, data: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text + data


GOOD_TEXT = json.dumps({
    "__metadata__": {"format": "mlx"},
    "mtp.fc.weight": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]},
    "mtp.norm.weight": {"dtype": "BF16", "shape": [2], "data_offsets": [8, 12]},
}).encode()  # fmt: skip
GOOD = safetensors(GOOD_TEXT, bytes(12))

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4)
    ),
    max_leaves=12,
)
sizes = st.lists(st.integers(-1, 2**64), max_size=3)
entries = st.fixed_dictionaries({
    "dtype": st.sampled_from(["F32", "BF16", "U8", "F4", "X9"]) | json_values,
    "shape": sizes | json_values,
    "data_offsets": sizes | json_values,
})  # fmt: skip
described = st.dictionaries(st.text(max_size=9), entries | json_values, max_size=4)


@st.composite
def bent(draw: st.DrawFn) -> bytes:
    """A good file with a few bytes changed, added or lost."""
    place, lost = draw(st.integers(0, len(GOOD))), draw(st.integers(0, 12))
    return GOOD[:place] + draw(st.binary(max_size=6)) + GOOD[place + lost :]


contents = st.one_of(
    st.binary(max_size=99),
    st.builds(safetensors, st.binary(max_size=99), st.binary(max_size=20)),
    st.builds(safetensors, described.map(lambda d: json.dumps(d).encode()), st.binary(max_size=20)),
    bent(),
)


def check(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    try:
        tensors = read_header(path)
    except CheckpointError as error:
        assert str(path) in str(error)
    else:
        # Every byte of the file is accounted for, once.
        data = sum(tensor.end - tensor.begin for tensor in tensors)
        assert 8 + int.from_bytes(content[:8], "little") + data == len(content)


def fuzz(folder: Path, examples: int) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(contents)
    def run(content: bytes) -> None:
        check(folder / "x.safetensors", content)

    run()


def test_the_file_that_is_bent_here_is_good(tmp_path: Path) -> None:
    for content in (GOOD, safetensors(b"{}", b"")):
        check(tmp_path / "x.safetensors", content)
        read_header(tmp_path / "x.safetensors")


def test_no_bytes_surprise_the_header_reader(tmp_path: Path) -> None:
    fuzz(tmp_path, 300)


@pytest.mark.soak
def test_no_bytes_surprise_the_header_reader_for_long(tmp_path: Path) -> None:
    fuzz(tmp_path, 100_000)
