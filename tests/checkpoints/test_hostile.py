"""Files from strangers: refused quickly, by name, and without believing what they claim."""

from __future__ import annotations

import json
import os
import pickle
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from speculate.checkpoints import find_head, has_head, read_head
from speculate.checkpoints.folder import FILE_LIMIT
from speculate.checkpoints.safetensors import HEADER_LIMIT
from speculate.errors import CheckpointError
from tests.support import checkpoint_files as tiny

NAME = "mtp.fc.weight"


@pytest.fixture(autouse=True)
def quick_and_small() -> Iterator[None]:
    """A second, and no allocation to speak of."""
    # Time of this process: a busy machine must not fail the test.
    start, peak = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert time.process_time() - start < 1
    unit = 1 if sys.platform == "darwin" else 1024
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) * unit
    assert grown < 200 * 2**20


def safetensors(described: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = described if isinstance(described, bytes) else json.dumps(described).encode()
    size = len(text) if length is None else length
    return size.to_bytes(8, "little") + text + data


def tensor(dtype: object, shape: object, *span: object) -> dict[str, object]:
    return {NAME: {"dtype": dtype, "shape": shape, "data_offsets": list(span)}}


GOOD = safetensors(tensor("F32", [2], 0, 8), b"12345678")
BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "0 bytes"),
    "seven bytes": (b"1234567", "7 bytes"),
    "a pickle": (pickle.dumps({"a": 1}) + b" " * 40, "claims a header"),
    "a header longer than the file": (safetensors({}, b"", 1000), "cut short"),
    "a header of 2^63 bytes": (safetensors({}, b"", 2**63), "claims a header"),
    "cut in its data": (GOOD[:-1], "cut short"),
    "bytes after the data": (GOOD + b"1", "damaged"),
    "no JSON": (safetensors(b"{'a': 1}"), "not valid JSON"),
    "JSON that is no object": (safetensors([1]), "not a JSON object"),
    "text that is no UTF-8": (safetensors(b'{"\xff\xfe": 1}'), "not valid JSON"),
    "brackets without end": (safetensors(b"[" * 100_000), "not valid JSON"),
    "a number of 10,000 digits": (safetensors(b'{"a":' + b"9" * 10_000 + b"}"), "not valid JSON"),
    "one name twice": (
        safetensors(GOOD[8:-9] + b"," + GOOD[9:-8], b"12345678"),
        "twice",
    ),
    "an offset that lies": (safetensors(tensor("F32", [2], 0, 4), b"1234"), "claims 4 bytes"),
    "offsets after the end": (safetensors(tensor("F32", [2], 0, 8), b"1234"), "cut short"),
    "decreasing offsets": (safetensors(tensor("F32", [0], 8, 0), b"12345678"), "claims bytes"),
    "a hole": (safetensors(tensor("F32", [1], 4, 8), b"12345678"), "hole"),
    "a shape of 2^60": (safetensors(tensor("F32", [2**30, 2**30], 0, 8), b"12345678"), "claims"),
    "a side of 2^60": (safetensors(tensor("F32", [2**60], 0, 8), b"12345678"), "impossible"),
    "a thousand axes": (safetensors(tensor("F32", [1] * 1000, 0, 4), b"1234"), "impossible"),
    "a negative side": (safetensors(tensor("F32", [-2], 0, 8), b"12345678"), "described"),
    "a side of true": (safetensors(tensor("F32", [True], 0, 4), b"1234"), "described"),
    "a broken side": (safetensors(tensor("F32", [2.0], 0, 8), b"12345678"), "described"),
    "three offsets": (safetensors(tensor("F32", [2], 0, 8, 8), b"12345678"), "described"),
    "no dtype": (safetensors(tensor(None, [2], 0, 8), b"12345678"), "described"),
    "a tensor that is text": (safetensors({NAME: "F32"}), "described"),
}


@pytest.mark.parametrize(("content", "reason"), BAD.values(), ids=BAD)
def test_a_damaged_or_lying_file_is_refused_by_name(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    path = tmp_path / "mtp.safetensors"
    path.write_bytes(content)
    for place in (tmp_path, path):
        with pytest.raises(CheckpointError, match=r"mtp\.safetensors") as caught:
            find_head(place)
        assert reason in str(caught.value)
    with pytest.raises(CheckpointError):
        has_head(tmp_path)


def test_overlapping_tensors_are_refused(tmp_path: Path) -> None:
    described = {**tensor("F32", [2], 0, 8), "mtp.norm.weight": tensor("F32", [2], 4, 12)[NAME]}
    (tmp_path / "x.safetensors").write_bytes(safetensors(described, b"1" * 12))
    with pytest.raises(CheckpointError, match="overlap"):
        find_head(tmp_path)


def test_a_header_over_the_limit_is_not_even_read(tmp_path: Path) -> None:
    path = tmp_path / "mtp.safetensors"
    with path.open("wb") as file:
        file.write((HEADER_LIMIT + 1).to_bytes(8, "little"))
        file.truncate(2**40)
    with pytest.raises(CheckpointError, match="claims a header"):
        find_head(tmp_path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b",".join(b'"%d":0' % (n % 99_999) for n in range(100_000)), "twice"),
        (b",".join(b'"%d":{}' % n for n in range(600_000)), "keys, lists and objects"),
        (b'"a":[' + b"[]," * 1_100_000 + b"0]", "keys, lists and objects"),
    ],
    ids=["one name of many twice", "too many objects", "too many lists"],
)
def test_a_header_of_very_many_parts_is_refused_as_quickly(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    (tmp_path / "mtp.safetensors").write_bytes(safetensors(b"{" + content + b"}"))
    with pytest.raises(CheckpointError, match=r"mtp\.safetensors") as caught:
        find_head(tmp_path)
    assert reason in str(caught.value)


INDEX = {
    "a path out of the folder": ("../other/model.safetensors", "outside"),
    "an absolute path": ("/etc/model.safetensors", "outside"),
    "a path through another system's separators": ("..\\model.safetensors", "outside"),
    "another system's absolute path": ("C:\\model.safetensors", "outside"),
    "a path that leaves half way": ("a/../../model.safetensors", "outside"),
    "a path with a zero": ("a\0.safetensors", "outside"),
    "a pickle": ("pytorch_model.bin", "not a safetensors file"),
    "nothing": ("", "not a safetensors file"),
}


@pytest.mark.parametrize(("place", "reason"), INDEX.values(), ids=INDEX)
def test_an_index_may_name_files_of_its_folder_only(
    tmp_path: Path, place: str, reason: str
) -> None:
    for elsewhere in ("other", "folder"):
        tiny.write(tmp_path / elsewhere, {"model.safetensors": {NAME: mx.zeros((2,))}})
    index = tmp_path / "folder" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {NAME: place}}))
    with pytest.raises(CheckpointError, match=r"index\.json") as caught:
        find_head(tmp_path / "folder")
    assert reason in str(caught.value)


def test_an_index_may_not_list_names_or_files_without_end(tmp_path: Path) -> None:
    folder = tiny.write(tmp_path, {"model.safetensors": {"a": mx.zeros((2,))}})
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {NAME: f"{'a' * 5000}.safetensors"}}))
    with pytest.raises(CheckpointError, match="which is missing"):
        find_head(folder)
    places = {f"{NAME}.{n}": f"{n}.safetensors" for n in range(FILE_LIMIT + 1)}
    index.write_text(json.dumps({"weight_map": places}))
    with pytest.raises(CheckpointError, match=r"index\.json: lists 10001 files"):
        find_head(folder)
    with index.open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(CheckpointError, match=r"index\.json: is longer than"):
        find_head(folder)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"weight_map": 3}', '{"a": 1, "a"', "[" * 100_000, "\0"]
)
@pytest.mark.parametrize("name", ["model.safetensors.index.json", "config.json"])
def test_a_broken_json_file_is_refused_by_name(tmp_path: Path, name: str, text: str) -> None:
    folder = tiny.write(tmp_path, {"mtp.safetensors": tiny.prefixed(tiny.make_head())})
    (folder / name).write_text(text)
    if name == "config.json" and text in ("{}", '{"weight_map": 3}'):
        assert has_head(folder)
        return
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        find_head(folder)


def test_links_that_go_round_in_circles_and_things_that_are_no_files(tmp_path: Path) -> None:
    def loop(path: Path) -> None:
        path.symlink_to(path.name)

    makers: list[Callable[[Path], Any]] = [loop, Path.mkdir, os.mkfifo]
    for number, make in enumerate(makers):
        folder = tmp_path / str(number)
        folder.mkdir()
        make(folder / "mtp.safetensors")
        with pytest.raises(CheckpointError, match=r"mtp\.safetensors"):
            find_head(folder)
    loop(tmp_path / "loop")
    long = tmp_path / ("a" * 300)
    for path in (tmp_path / "loop", tmp_path / "nowhere", tmp_path / "0" / "x.bin", long):
        with pytest.raises(CheckpointError, match=path.name):
            find_head(path)


def test_a_linked_file_is_read_as_the_hub_stores_them(tmp_path: Path) -> None:
    stored = tiny.write(tmp_path / "blobs", {"x.safetensors": tiny.prefixed(tiny.make_head())})
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "mtp.safetensors").symlink_to(stored / "x.safetensors")
    assert has_head(tmp_path / "snapshot")


def test_a_pickle_by_another_name_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "mtp.bin").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(CheckpointError, match="no other format is opened"):
        find_head(tmp_path / "mtp.bin")


def test_odd_shapes_inside_a_head_are_refused_by_name(tmp_path: Path) -> None:
    head = tiny.make_head()
    for number, (name, shape) in enumerate(
        [("pre_fc_norm_hidden.weight", ()), ("fc.weight", (3,)), ("norm.weight", (2, 2))]
    ):
        stored = tiny.prefixed({**head, name: mx.zeros(shape)})
        folder = tiny.write(tmp_path / str(number), {"mtp.safetensors": stored})
        with pytest.raises(CheckpointError, match=name):
            read_head(find_head(folder))


def test_a_dtype_that_mlx_lacks_is_named(tmp_path: Path) -> None:
    folder = tiny.write(tmp_path, {"mtp.safetensors": tiny.prefixed(tiny.make_head())})
    odd = {"model.odd": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}}
    (folder / "model.safetensors").write_bytes(safetensors(odd, b"12345678"))
    assert not read_head(find_head(folder)).unknown_tensors
    path = tmp_path / "alone" / "mtp.safetensors"
    path.parent.mkdir()
    path.write_bytes(safetensors(tensor("F64", [1], 0, 8), b"12345678"))
    with pytest.raises(CheckpointError, match=r"mtp\.safetensors.*mtp\.fc\.weight.*F64"):
        read_head(find_head(path))


def test_a_head_larger_than_the_machine_is_not_even_begun(tmp_path: Path) -> None:
    path, size = tmp_path / "mtp.safetensors", 2**42
    text = json.dumps(tensor("F32", [size // 4], 0, size)).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + size)
    with pytest.raises(CheckpointError, match="memory"):
        read_head(find_head(tmp_path))


def test_not_a_byte_of_the_trunk_is_read(tmp_path: Path) -> None:
    head = tiny.make_head()
    path = tiny.write(tmp_path, {"model.safetensors": tiny.prefixed(head)}) / "model.safetensors"
    content, size = path.read_bytes(), 2**35
    length = int.from_bytes(content[:8], "little")
    described, end = json.loads(content[8 : 8 + length]), len(content) - 8 - length
    described["model.norm.weight"] = {
        "dtype": "F32",
        "shape": [2**16, size // 2**18],
        "data_offsets": [end, end + size],
    }
    with path.open("wb") as file:
        file.write(safetensors(described, content[8 + length :]))
        file.truncate(file.tell() + size)
    # 32 GB that are not there: the time and the memory that this test may take say the rest.
    assert read_head(find_head(tmp_path)).weights.keys() == head.keys()
