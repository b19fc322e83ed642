"""`speculate inspect --check`: heads that draft, and heads that do not, and why."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import pytest

import speculate as sp
from speculate.checkpoints import find_head, read_head
from speculate.cli import inspect
from speculate.loading import demo_folder
from tests.support import checkpoint_files as tiny
from tests.support.command_runs import Said, run

HYBRID = demo_folder("hybrid")


@pytest.fixture(autouse=True)
def fewer_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect, "PROMPT_TOKENS", 48)


def asked(capsys: pytest.CaptureFixture[str], *options: str) -> Said:
    said = run(capsys, "inspect", "hybrid", "--check", *options)
    assert said.err == ""
    return said


def stored(folder: Path, *, by: float = 0.0, seed: int | None = None) -> str:
    """The bundled head with `by` added to its norms, or random matrices of its shapes."""
    head = dict(read_head(find_head(HYBRID)).weights)
    for name, array in head.items():
        if "norm" in name:
            head[name] = array + by
        elif seed is not None and array.dtype == mx.float32:
            head[name] = mx.random.normal(array.shape, key=mx.random.key(seed)) * array.std()
    return str(tiny.write(folder, {"mtp.safetensors": head}, config={}) / "mtp.safetensors")


def test_the_bundled_head(capsys: pytest.CaptureFixture[str]) -> None:
    said = asked(capsys)
    assert said.status == 0
    assert "of first drafts accepted, over 48 tokens" in said.out.splitlines()[-1]
    found = json.loads(asked(capsys, "--json").out)["check"]
    assert found["passed"] and found["acceptance"] > 0.3
    assert (found["tokens"], found["by_convention"]) == (48, {})


def test_raw_norms_are_found_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = json.loads(asked(capsys, "--json").out)["check"]["acceptance"]
    raw = stored(tmp_path, by=-1.0)
    found = json.loads(asked(capsys, "--json", "--head", raw).out)
    assert {norm["convention"] for norm in found["head"]["norms"]} == {"raw"}
    assert abs(found["check"]["acceptance"] - expected) < 0.05


def test_norms_taken_for_what_they_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = asked(capsys, "--head", stored(tmp_path, by=-1.0), "--norms", "gains")
    assert said.status == 1
    assert "Such a low acceptance rate usually means" in said.out
    assert said.out.splitlines()[-1].endswith('Load it with load_mtp_head(..., norms="raw").')
    lines = {line.split()[-2]: line.split()[-1] for line in said.out.splitlines()[-3:-1]}
    assert lines.keys() == {"gains:", "raw:"}
    assert int(lines["raw:"][:-1]) > 30 > int(lines["gains:"][:-1])


def test_a_head_of_another_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = asked(capsys, "--head", stored(tmp_path, seed=1))
    assert said.status == 1
    assert "the head was trained for another model." in said.out.splitlines()[-1]


def test_what_cannot_be_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = stored(tmp_path)
    for options, reason in (
        ((head, "--check"), "is a head alone"),
        (("draft", "--check"), "no multi-token-prediction head"),
        (("draft", "--check", "--head", head), "no multi-token-prediction head is known"),
    ):
        said = run(capsys, "inspect", *options)
        assert (said.status, said.out) == (2, "")
        assert reason in said.err


@pytest.mark.parametrize("length", [2, 3, 9])
def test_the_acceptance_is_that_of_depth_one(length: int) -> None:
    model, _ = sp.load(HYBRID, head=False, dequantize=True)
    head = sp.load_mtp_head(HYBRID, model, dequantize=True)
    prompt = list(range(40, 40 + length))
    decoder = sp.Decoder(model, sp.Off())
    text = prompt + [token.id for token in decoder.generate(prompt, 12, stop_tokens=())]
    cache, right = model.make_cache(), 0
    rows = head.make_cache()
    for place, token in enumerate(text[:-1]):
        hidden = model.forward(mx.array([[token]]), cache).hidden
        guess = head.step(hidden, mx.array([[text[place + 1]]]), rows).logits
        if length <= place + 2 < len(text):
            right += mx.argmax(guess[0, -1]).item() == text[place + 2]
    assert inspect.first_draft_acceptance(model, head, prompt, 12) == pytest.approx(right / 12)
