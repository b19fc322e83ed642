"""`speculate generate`: the text, the counters, and what it makes of its options."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

import speculate as sp
from speculate.loading import demo_prompt
from tests.support import reference, tiny, tokenizers
from tests.support.command_runs import run


@pytest.fixture
def dense(tmp_path: Path) -> str:
    return str(tokenizers.write_folder(tmp_path / "dense", tiny.dense(), tokenizers.DENSE))


@pytest.fixture
def drafter(tmp_path: Path) -> str:
    config = {**tokenizers.DENSE, "num_hidden_layers": 1}
    model = tiny.dense(seed=3, num_hidden_layers=1)
    return str(tokenizers.write_folder(tmp_path / "draft", model, config))


def wanted(folder: str, prompt: str, count: int, chat: bool = False) -> str:
    model, tokenizer = sp.load(folder)
    return sp.generate(model, tokenizer, prompt, max_tokens=count, chat_template=chat)


def test_the_bundled_model_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    model, tokenizer = sp.load()
    text = sp.generate(model, tokenizer, demo_prompt(), max_tokens=24)
    said = run(capsys, "generate", "--max-tokens", "24", "--proposer", "off")
    assert said.status == 0
    assert said.notes == (
        "no --prompt given, using a bundled one: "
        "def formatyear(self, theyear, w=2, l=1, c=6, m=3): ...\n"
    )
    assert said.out == text + "\n" * (not text.endswith("\n"))
    assert said.counters() == {"tokens": 24, "passes": 24}
    for options in (
        ("--depth", "1"),
        ("--proposer", "draft", "--depth", "3"),
        ("--proposer", "lookup", "--depth", "3"),
        ("--num-draft-tokens", "5"),
    ):
        again = run(capsys, "generate", "--max-tokens", "24", *options)
        assert again.out == said.out
        counted = again.counters()
        assert counted["passes"] <= 24
        assert counted["accepted"] + counted["passes"] == 24
        assert counted["accepted"] <= counted["drafted"]
        assert counted["rate"] == pytest.approx(
            100 * counted["accepted"] / counted["drafted"], abs=0.5
        )


def test_a_folder_and_a_draft_model(
    capsys: pytest.CaptureFixture[str], dense: str, drafter: str
) -> None:
    base = ("generate", "--model", dense, "--prompt", "abc", "-m", "8")
    text = wanted(dense, "abc", 8)
    for options, drafts in (
        (("--proposer", "off"), False),
        (("--proposer", "off", "--draft-model", drafter), False),
        (("--draft-model", drafter, "--depth", "3"), True),
        (("--draft-model", dense, "--depth", "2"), True),
        (("--draft-model", drafter, "--depth", "0"), False),
    ):
        said = run(capsys, *base, *options)
        assert (said.status, said.notes) == (0, "")
        assert said.out.rstrip("\n") == text.rstrip("\n")
        assert ("drafted" in said.counters()) == drafts


def test_a_head_from_elsewhere(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from tests.test_loading import headed

    folder = headed(tmp_path / "other")
    bare = headed(tmp_path / "bare")
    (bare / "mtp.safetensors").rename(tmp_path / "head.safetensors")
    base = ("generate", "--model", str(bare), "--prompt", "ab", "-m", "6", "--proposer", "mtp")
    assert run(capsys, *base, "--depth", "3").status == 2
    for head in (tmp_path / "head.safetensors", folder):
        said = run(capsys, *base, "--depth", "3", "--head", str(head))
        assert "drafted" in said.counters()


def test_a_bundled_head_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--proposer", "mtp", "--depth", "3", "--max-tokens", "24")
    own = run(capsys, "generate", *options)
    named = run(capsys, "generate", *options, "--head", "hybrid")
    assert (named.status, named.notes) == (0, own.notes)
    assert (named.out, named.counters()) == (own.out, own.counters())


def test_a_folder_wins_over_a_bundled_model_of_its_name(
    capsys: pytest.CaptureFixture[str], dense: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(dense).rename(Path(dense).parent / "hybrid")
    base = ("generate", "--model", "hybrid", "--prompt", "abc", "-m", "6")
    elsewhere = run(capsys, *base)
    monkeypatch.chdir(Path(dense).parent)
    here = run(capsys, *base)
    assert here.out.rstrip("\n") == wanted("hybrid", "abc", 6).rstrip("\n")
    assert here.out != elsewhere.out


def test_a_prompt_from_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, dense: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("abc"))
    said = run(capsys, "generate", "--model", dense, "--prompt", "-", "-m", "6")
    assert said.out.rstrip("\n") == wanted(dense, "abc", 6).rstrip("\n")


def test_stop_strings(capsys: pytest.CaptureFixture[str], dense: str) -> None:
    text = wanted(dense, "abc", 8)
    said = run(
        capsys, "generate", "--model", dense, "-p", "abc", "-m", "8",
        "--stop", "never", "--stop", text[3:5],
    )  # fmt: skip
    assert said.out.rstrip("\n") == text[: text.index(text[3:5])]
    assert said.counters()["tokens"] < 8


def test_the_chat_template(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    template = "{% for m in messages %}X{{ m['content'] }}Y{% endfor %}"
    folder = str(
        tokenizers.write_folder(tmp_path, tiny.dense(), tokenizers.DENSE, chat_template=template)
    )
    base = ("generate", "--model", folder, "--prompt", "ab", "-m", "6")
    on, off = wanted(folder, "ab", 6, chat=True), wanted(folder, "ab", 6)
    assert on != off
    for options, text in (
        ((), on),
        (("--chat-template", "on"), on),
        (("--chat-template", "off"), off),
    ):
        assert run(capsys, *base, *options).out.rstrip("\n") == text.rstrip("\n")


def test_a_quantised_cache(capsys: pytest.CaptureFixture[str]) -> None:
    base = ("generate", "--max-tokens", "16", "--kv-bits", "8", "--quantized-kv-start", "0")
    plain = run(capsys, *base, "--proposer", "off")
    assert plain.status == 0
    assert run(capsys, *base, "--depth", "4", "--prefill-step-size", "20").out == plain.out


def test_a_reader_that_leaves(dense: str) -> None:
    command = (
        f"{sys.executable} -m speculate.cli generate --model {dense} -p abc -m 400 | head -c 3"
    )
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert (len(done.stdout), done.stderr) == (3, "")


def test_unlimited_ends_with_the_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    ends = reference.truth("dense", (0, 1, 2), 5)[4]
    config = {**tokenizers.DENSE, "eos_token_id": ends}
    folder = tokenizers.write_folder(tmp_path, tiny.dense(), config)
    said = run(capsys, "generate", "--model", str(folder), "--prompt", "abc", "-m", "-1")
    assert said.status == 0
    assert said.counters()["tokens"] <= 5


def test_the_same_seed_gives_the_same_text_with_any_proposer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    texts, lines = set(), []
    for proposers in (["off"], ["mtp"], ["draft"], ["lookup"], ["mtp", "draft", "lookup"]):
        options = ("--temp", "0.8", "--seed", "5", "--max-tokens", "30", "--proposer", *proposers)
        found = run(capsys, "generate", *options)
        texts.add(found.out)
        lines.append(found.err.rstrip("\n"))
    assert len(texts) == 1
    assert all(line.endswith("seed 5") for line in lines)


def test_lookup_drafts_for_a_model_without_a_head(
    capsys: pytest.CaptureFixture[str], dense: str
) -> None:
    text = wanted(dense, "abcabcabc", 24)
    base = ("generate", "--model", dense, "--prompt", "abcabcabc", "-m", "24")
    said = run(capsys, *base, "--proposer", "lookup", "--depth", "2")
    assert (said.status, said.notes) == (0, "")
    assert said.out.rstrip("\n") == text.rstrip("\n")
    assert said.counters()["drafted"] >= 2


def test_the_draft_model_is_not_the_target(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--proposer", "draft", "--depth", "3", "--max-tokens", "60")
    found = run(capsys, "generate", *options)
    accepted, drafted = re.findall(r"accepted (\d+) of (\d+)", found.err)[0]
    assert 0 < int(accepted) < int(drafted)
