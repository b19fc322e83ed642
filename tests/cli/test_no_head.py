"""A model without its head: because it is asked for, or because a stale index speaks of one."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import pytest

import speculate as sp
from speculate.errors import CheckpointError, HeadNotFoundError, SpeculateWarning
from tests.support import checkpoint_files as tiny
from tests.support import tokenizers
from tests.support.command_runs import Said, run
from tests.support.tiny import VOCAB

INDEX = "model.safetensors.index.json"
SHORT = ("--prompt", "a", "--max-tokens", "4")


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint as a conversion leaves it, without the head."""
    place = tmp_path_factory.mktemp("stock")
    return tokenizers.write_folder(place, tiny.make_model("qwen3_5", vocab_size=VOCAB), config())


def config() -> dict[str, object]:
    return tiny.config("qwen3_5", vocab_size=VOCAB, mtp_num_hidden_layers=1)


def list_head(folder: Path, file: str) -> None:
    """Let the index list a head's tensors, as the source's did, in some file."""
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"] |= {name: file for name in tiny.prefixed(tiny.make_head())}
    (folder / INDEX).write_text(json.dumps(index))


@pytest.fixture(params=["model-00002-of-00002.safetensors", "model.safetensors"])
def stale(stock: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The same beside the source's index: the head's file is missing, or holds no head."""
    for path in stock.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    list_head(tmp_path, request.param)
    return tmp_path


@pytest.fixture
def headed(stock: Path, tmp_path: Path) -> Path:
    for path in stock.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    head = tiny.prefixed(tiny.make_head())
    mx.save_safetensors(str(tmp_path / "mtp.safetensors"), head)
    return tmp_path


def warned_once(said: Said, folder: Path) -> bool:
    lines = [line for line in said.err.splitlines() if line.startswith("speculate: warning: ")]
    return len(lines) == 1 and str(folder / INDEX) in lines[0] and "without its" in lines[0]


def test_a_stale_index_is_no_reason_to_refuse_a_model(stale: Path) -> None:
    with pytest.warns(SpeculateWarning) as caught:
        model, _ = sp.load(stale)
    (warning,) = caught
    assert str(stale / INDEX) in str(warning.message) and "mtp." in str(warning.message)
    assert warning.filename == __file__
    assert model.head is None
    assert len(list(sp.Decoder(model).generate([1, 2, 3], 4))) == 4


def test_no_head_reads_no_index(stale: Path) -> None:
    (stale / INDEX).write_text("{")
    assert sp.load(stale, head=False)[0].head is None
    with pytest.raises(CheckpointError, match=r"index\.json: is not valid JSON"):
        sp.load(stale)


def test_a_head_that_is_asked_for_is_an_error(stale: Path) -> None:
    model, _ = sp.load(stale, head=False)
    for ask in (lambda: sp.load_mtp_head(stale, model), lambda: sp.load(stale, head=stale)):
        with pytest.raises(HeadNotFoundError) as caught:
            ask()
        for part in (str(stale / INDEX), "head=False", "--no-head"):
            assert part in str(caught.value)


def test_part_of_a_head_is_still_an_error(stale: Path) -> None:
    """Then it is the folder that is not whole, and not the index that is old."""
    some = {"mtp.fc.weight": tiny.make_head()["fc.weight"]}
    mx.save_safetensors(str(stale / "mtp.safetensors"), some)
    with pytest.raises(
        CheckpointError, match=r"lists mtp\..*(is missing|does not hold it)"
    ) as caught:
        sp.load(stale)
    assert not isinstance(caught.value, HeadNotFoundError)
    assert sp.load(stale, head=False)[0].head is None


def leave(*_: object) -> None:
    raise SystemExit(0)


@pytest.mark.parametrize(
    "command",
    [
        ("generate", *SHORT, "--proposer", "off", "--model"),
        ("verify", "--tokens", "1", "--model"),
        ("bench", "--tokens", "1", "--model"),
        ("inspect",),
    ],
    ids=lambda command: command[0],
)
def test_every_command_takes_such_a_folder(
    stale: Path,
    command: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(stale)
    # What comes after the model is loaded is proved elsewhere, and takes its time.
    monkeypatch.setattr("speculate.verify.cases", lambda subject: [])
    monkeypatch.setattr("speculate.cli.bench.settings_for", leave)
    for flags in ((), ("--no-head",), ("--head", "none")):
        said = run(capsys, *command, str(stale), *flags)
        assert said.status == 0, said
        if command[0] == "inspect":
            place = str(stale / INDEX) if not flags else "not looked for"
            assert any(line.startswith("head ") and place in line for line in said.out.splitlines())
        else:
            assert warned_once(said, stale) == (not flags)


def test_a_head_may_be_left_alone(headed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drafts = (*SHORT, "--proposer", "mtp", "--model", str(headed))
    assert run(capsys, "generate", *drafts).status == 0
    for flags in (("--no-head",), ("--head", "none")):
        said = run(capsys, "generate", *drafts, *flags)
        assert said.status == 2 and "has no multi-token-prediction head" in said.err
        told = run(capsys, "inspect", str(headed), "--json", *flags)
        assert json.loads(told.out)["head"] is None
        said = run(capsys, "inspect", str(headed), "--check", *flags)
        assert said.status == 2 and "--check" in said.err
    assert run(capsys, "generate", *drafts, "--no-head", "--head", "hybrid").status == 2


def test_asking_for_the_head_of_a_stale_index(
    stale: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = run(capsys, "generate", *SHORT, "--proposer", "mtp", "--model", str(stale))
    assert said.status == 2 and "has no multi-token-prediction head" in said.err
    assert warned_once(said, stale)
    for command in (
        ("generate", *SHORT, "--model", str(stale), "--head", str(stale)),
        ("inspect", str(stale), "--check"),
    ):
        said = run(capsys, *command)
        assert said.status == 2 and str(stale / INDEX) in said.err


def test_a_warning_is_one_line_however_often_the_file_is_read(
    stale: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (stale / "config.json").read_text()
    (stale / "config.json").write_text('{"\\u001b[2J": 1, "\\u001b[2J": 2, ' + text[1:])
    for command in (("generate", *SHORT, "--no-head", "--model"), ("inspect", "--no-head")):
        said = run(capsys, *command, str(stale))
        assert said.status == 0 and "\x1b" not in said.err
        lines = [line for line in said.err.splitlines() if "config.json: repeats" in line]
        assert len(lines) == 1 and lines[0].startswith("speculate: warning: ")
