"""Hub repositories: the files of a head come along, and what goes wrong is said in a line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import huggingface_hub.constants
import mlx.core as mx
import pytest
from huggingface_hub import errors
from mlx_lm.utils import _download
from typing_extensions import override

import speculate as sp
from speculate.checkpoints import has_head
from speculate.checkpoints.hub import download, download_head
from speculate.errors import CheckpointError
from tests.support import checkpoint_files as tiny
from tests.support import tokenizers
from tests.support.command_runs import run

COMMIT = "0123456789" * 4
REPOSITORY = "owner/name"


class Hub(BaseHTTPRequestHandler):
    """As much of a hub as a download asks of it: one repository, which is a folder."""

    def __init__(self, folder: Path, sent: list[str], *args: object) -> None:
        self.folder = folder
        self.sent = sent
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith(f"/api/models/{REPOSITORY}/revision/main"):
            self.reply(json.dumps({"id": REPOSITORY, "sha": COMMIT}).encode())
        elif path.startswith(f"/api/models/{REPOSITORY}/tree/"):
            files = [p for p in sorted(self.folder.rglob("*")) if p.is_file()]
            entries = [{"type": "file", "size": p.stat().st_size, "oid": tag(p),
                        "path": p.relative_to(self.folder).as_posix()} for p in files]  # fmt: skip
            self.reply(json.dumps(entries).encode())
        elif path.startswith(f"/{REPOSITORY}/resolve/{COMMIT}/"):
            file = self.folder / path.partition(f"{COMMIT}/")[2]
            if self.command == "GET":
                self.sent.append(file.relative_to(self.folder).as_posix())
            self.reply(file.read_bytes(), tag(file))
        else:
            code = "RevisionNotFound" if path.startswith(f"/api/models/{REPOSITORY}") else (
                "GatedRepo" if "gated" in path else "RepoNotFound"
            )  # fmt: skip
            self.send_response(404)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

    do_HEAD = do_GET

    def reply(self, content: bytes, etag: str = "x") -> None:
        self.send_response(200)
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def tag(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()


@pytest.fixture
def sent() -> list[str]:
    """Files that the hub has sent."""
    return []


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """The folder that the hub serves."""
    return tmp_path / "remote"


@pytest.fixture(autouse=True)
def hub(
    tmp_path: Path, remote: Path, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Hub, remote, sent))
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    place = f"http://127.0.0.1:{server.server_address[1]}"
    known = huggingface_hub.constants
    monkeypatch.setattr(known, "ENDPOINT", place)
    template = place + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(known, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(known, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(known, "HF_HUB_DISABLE_XET", True)
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on no hub is reached, and nothing waits for one."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def weights(sent: list[str]) -> list[str]:
    return sorted({name for name in sent if name.endswith(".safetensors")})


HEAD = tiny.prefixed(tiny.make_head())
TRUNK = {"model.norm.weight": tiny.make_head()["norm.weight"]}


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("mtp.safetensors", True),
        ("mtp.safetensors", False),
        ("model-mtp.safetensors", True),
        ("model-mtp.safetensors", False),
        ("head/x.safetensors", True),
    ],
)
def test_a_model_comes_with_its_head(
    remote: Path, sent: list[str], name: str, listed: bool
) -> None:
    (remote / name).parent.mkdir(parents=True)
    files = {"model.safetensors": TRUNK, name: HEAD}
    tiny.write(remote, files, listed=list(files) if listed else ["model.safetensors"])
    (remote / "pytorch_model.bin").write_text("")
    assert has_head(download(REPOSITORY))
    assert weights(sent) == sorted(files)
    assert "pytorch_model.bin" not in sent


def test_a_head_comes_with_no_more_of_the_trunk_than_it_must(remote: Path, sent: list[str]) -> None:
    files = {
        f"model-0000{n}.safetensors": {f"model.{n}": TRUNK["model.norm.weight"]} for n in (1, 2)
    }
    files["model-00003.safetensors"] = {**HEAD, **TRUNK}
    tiny.write(remote, files, listed=list(files))
    assert has_head(download_head(REPOSITORY))
    assert weights(sent) == ["model-00003.safetensors"]


def test_a_head_that_no_index_lists(remote: Path, sent: list[str]) -> None:
    files = {"model-00001.safetensors": TRUNK, "mtp.safetensors": HEAD}
    tiny.write(remote, files, listed=["model-00001.safetensors"])
    assert has_head(download_head(REPOSITORY))
    assert weights(sent) == ["mtp.safetensors"]


def test_a_model_without_a_head_is_not_downloaded_to_find_that_out(
    remote: Path, sent: list[str]
) -> None:
    tiny.write(remote, {"model.safetensors": TRUNK}, listed=["model.safetensors"])
    assert not has_head(download_head(REPOSITORY))
    assert weights(sent) == []


def test_a_drafter(remote: Path, sent: list[str]) -> None:
    tiny.write(remote, {"model.safetensors": tiny.make_head()})
    assert has_head(download_head(REPOSITORY))
    assert weights(sent) == ["model.safetensors"]


def test_without_a_connection_what_is_here_is_used(
    remote: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tiny.write(remote, {"model.safetensors": TRUNK, "mtp.safetensors": HEAD})
    # As mlx-lm downloads it: without the head.
    plain = _download(REPOSITORY)
    with monkeypatch.context() as away:
        offline(away)
        assert download(REPOSITORY) == plain and not has_head(plain)
        assert "files of its head were never downloaded" in caplog.text
        with pytest.raises(CheckpointError, match="the hub cannot be reached"):
            download_head(REPOSITORY)
    assert has_head(download(REPOSITORY))
    offline(monkeypatch)
    assert has_head(download(REPOSITORY)) and has_head(download_head(REPOSITORY))


def test_loading_by_name(remote: Path, sent: list[str], tmp_path: Path) -> None:
    trunk, head = tiny.trunk_weights(tiny.make_model()), tiny.make_head()
    tiny.write(remote, {"model.safetensors": trunk, "mtp.safetensors": tiny.prefixed(head)})
    tokenizers.fast_tokenizer().save_pretrained(remote)
    here = tiny.write(tmp_path / "here", {"model.safetensors": trunk})
    tokenizers.fast_tokenizer().save_pretrained(here)
    assert sp.load(here)[0].head is None
    reference = sp.load(REPOSITORY)[0].head
    sent.clear()
    for found in (
        sp.load(here, head=REPOSITORY)[0].head,
        sp.load_mtp_head(REPOSITORY, sp.load(here)[0]),
    ):
        assert found is not None and reference is not None
        rows = [h.step(*tiny.rows(6), h.make_cache()).logits for h in (found, reference)]
        assert bool(mx.array_equal(rows[0], rows[1]))
    assert sent == []


def test_the_command_takes_names_too(
    remote: Path, sent: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"model.safetensors": tiny.trunk_weights(tiny.make_model()), "mtp.safetensors": HEAD}
    tiny.write(remote, files, listed=list(files))
    tokenizers.fast_tokenizer().save_pretrained(remote)
    head, whole = tmp_path / "head", tmp_path / "whole"
    assert run(capsys, "extract-head", REPOSITORY, "--output", str(head)).status == 0
    assert weights(sent) == ["mtp.safetensors"] and has_head(head)
    assert run(capsys, "convert", REPOSITORY, str(whole)).status == 0
    assert sp.load(whole)[0].head is not None
    found = run(capsys, "inspect", REPOSITORY, "--head", REPOSITORY, "--json")
    assert json.loads(found.out)["head"]["files"] == ["mtp.safetensors"]
    said = run(capsys, "inspect", "nobody/nothing")
    assert said.status == 2 and said.err.count("\n") == 1 and "no such repository" in said.err


@pytest.mark.parametrize("get", [download, download_head])
@pytest.mark.parametrize(
    ("repository", "revision", "reason"),
    [
        ("nobody/nothing", None, "no such repository, or it is private"),
        ("nobody/gated", None, "grants access on request"),
        (REPOSITORY, "v9", "no such branch, tag or commit"),
    ],
)
def test_why_a_repository_cannot_be_had(
    remote: Path, get: object, repository: str, revision: str | None, reason: str
) -> None:
    tiny.write(remote, {"model.safetensors": TRUNK})
    assert callable(get)
    with pytest.raises(CheckpointError) as caught:
        get(repository, revision)
    assert reason in str(caught.value) and "\n" not in str(caught.value)
    assert str(caught.value).startswith(repository)


@pytest.mark.parametrize("get", [download, download_head])
def test_no_connection_and_nothing_here(get: object, monkeypatch: pytest.MonkeyPatch) -> None:
    offline(monkeypatch)
    assert callable(get)
    with pytest.raises(CheckpointError, match=r"the hub cannot be reached.*or give a folder"):
        get(REPOSITORY)


def test_an_index_that_points_out_of_its_folder_fetches_nothing(
    remote: Path, sent: list[str]
) -> None:
    tiny.write(remote, {"model.safetensors": TRUNK})
    index = {"weight_map": {"mtp.fc.weight": "../../elsewhere.safetensors"}}
    (remote / "model.safetensors.index.json").write_text(json.dumps(index))
    for get in (download, download_head):
        with pytest.raises(CheckpointError, match="outside its folder"):
            get(REPOSITORY)
    assert weights(sent) in ([], ["model.safetensors"])


def test_whatever_else_goes_wrong_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> str:
        raise errors.HFValidationError("no\nname")

    monkeypatch.setattr("mlx_lm.utils.snapshot_download", fail)
    with pytest.raises(CheckpointError, match="HFValidationError: no name"):
        download(REPOSITORY)
