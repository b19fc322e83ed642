"""`speculate verify`: what it prints, writes and returns."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from speculate import SpeculativeModel, verify
from speculate.cli import _console
from speculate.cli import verify as command
from speculate.verify import Case, Difference, Result
from tests.support.command_runs import Said, run
from tests.support.reference import adapted, get
from tests.support.verify_subjects import TEXT, Forgetful, InBlocks, hybrid, next_numbers, with_ties

CHECK = re.compile(r"  (OK|NUMERICS|BUG) +(\w+)  .*")


class Words:
    """A tokenizer that makes the same text of everything."""

    def encode(self, text: str) -> list[int]:
        return TEXT


def bring(
    patch: pytest.MonkeyPatch, model: SpeculativeModel, draft: SpeculativeModel | None = None
) -> None:
    """Have the command load these, whatever is asked for."""
    patch.setattr(
        command,
        "load_named",
        lambda name, head=None: (draft if draft and name == "draft" else model, Words()),
    )


def outcomes(said: Said) -> dict[str, set[str]]:
    """What the printed report says of each check."""
    found: dict[str, set[str]] = {}
    for line in (said.out or said.err).splitlines():
        if match := CHECK.match(line):
            found.setdefault(match[2], set()).add(match[1])
    return found


def test_a_bundled_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(_console, "PROGRESS_INTERVAL", math.inf)
    file = tmp_path / "report.json"
    said = run(capsys, "verify", "--model", "windowed", "--tokens", "4", "--json", str(file))
    assert (said.status, said.err) == (0, "")
    lines = said.out.splitlines()
    assert lines[0] == "speculate verify: OK"
    assert re.fullmatch(r"0 differences in \d+ comparisons, \d+ checks", lines[1])
    assert re.search(r"mlx-speculate \S+, mlx \S+, mlx-lm \S+, Python 3\.\d+", said.out)
    assert "  family    gpt_oss (DenseAdapter)\n" in said.out
    assert "windows of 32" in said.out and "--tokens 32" in lines[-1]
    every = {"forward", "tails", "rewind", "sequence", "acceptance", "seed"}
    assert outcomes(said) == {check: {"OK"} for check in every}

    written: dict[str, Any] = json.loads(file.read_text())
    (model,) = written["models"]
    assert written["outcome"] == "OK" and not written["interrupted"]
    assert model["name"] == "windowed" and model["about"]["logits"] == "float32"
    assert model["planned"] == len(model["checks"]) == sum(1 for x in lines if CHECK.match(x))
    assert sum(check["compared"] for check in model["checks"]) == int(lines[1].split()[3])


def test_a_draft_model_drafts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bring(monkeypatch, get("shallow").model, get("small_dense").model)
    monkeypatch.setattr(verify, "cases", few)
    said = run(capsys, "verify", "--model", "mine", "--draft", "draft", "--tokens", "3")
    assert said.status == 0
    assert "  drafts    draft (draft), lookup\n" in said.out


def test_without_a_terminal_a_line_says_now_and_then_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bring(monkeypatch, get("shallow").model, get("small_dense").model)
    monkeypatch.setattr(verify, "cases", few)
    monkeypatch.setattr(_console, "PROGRESS_INTERVAL", 0.0)  # at every chance
    said = run(capsys, "verify", "--model", "mine", "--draft", "draft", "--tokens", "3")
    assert said.out.startswith("speculate verify: OK\n")
    assert said.err.splitlines() == [
        "mine: sequence, draft: 0%",
        "mine: sequence, draft: 50%",
        "mine: sequence, lookup: 50%",
        "mine: sequence, lookup: 100%",
        "mine: OK: 100%",
    ]


def few(subject: verify.VerificationTarget) -> list[Case]:
    """Some checks that take no time, and others."""
    names = [drafter.name for drafter in subject.drafters]
    return [Case("sequence", name, lambda: Result(subject.tokens, "tokens")) for name in names]


def test_without_a_model_all_bundled_ones(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "cases", few)
    said = run(capsys, "verify")
    assert said.status == 0
    blocks = said.out.split("\n\n")[2:-1]
    assert [block.splitlines()[0] for block in blocks] == ["hybrid", "draft", "windowed"]
    drafts = [re.search(r"drafts +(.*)", block) for block in blocks]
    shown = ["mtp, draft (draft), lookup", "lookup", "draft (draft), lookup"]
    assert [match and match[1] for match in drafts] == shown


def test_rounding_is_no_bug(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bring(monkeypatch, InBlocks(with_ties().model, next_numbers))
    said = run(capsys, "verify", "--model", "mine", "--tokens", "4")
    assert said.status == 0
    assert said.out.startswith("speculate verify: NUMERICS\n")
    assert "Nothing is wrong" in said.out and "within rounding" in said.out
    assert not any("BUG" in seen for seen in outcomes(said).values())


def test_a_bug_is_reported_and_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    head = hybrid().model.head
    assert head is not None
    model = adapted(hybrid().module, Forgetful(head, lambda n: n % 2 == 0)).model
    bring(monkeypatch, model)
    said = run(capsys, "verify", "--model", "mine", "--tokens", "6", "--json", "-")
    assert said.status == 1
    assert said.err.startswith("speculate verify: BUG\n")
    assert {check for check, seen in outcomes(Said(1, "", said.err)).items() if "BUG" in seen} == {
        "acceptance"
    }
    assert "This is a BUG: please report it" in said.err
    (found,) = json.loads(said.out)["models"]
    wrong = [check for check in found["checks"] if check["outcome"] == "BUG"]
    assert {check["case"] for check in wrong} == {
        "mtp, depth 4, greedy",
        "mtp, depth 4, coupled",
    }
    assert wrong[0]["differences"][0]["kind"] == "bug"


def test_many_differences_are_not_all_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [Difference(n, float("inf"), None, "bug", f"wrong {n}") for n in range(5)]
    case = Case("sequence", "\x1b[31mred", lambda: Result(9, "tokens", many))
    bring(monkeypatch, get("shallow").model)
    monkeypatch.setattr(verify, "cases", lambda subject: [case])
    said = run(capsys, "verify", "--model", "mine", "--json", "-")
    assert said.status == 1 and "\x1b" not in said.err
    assert "wrong 2" in said.err and "wrong 3" not in said.err and "and 2 more" in said.err
    (found,) = json.loads(said.out)["models"]
    assert len(found["checks"][0]["differences"]) == 5


def test_ctrl_c_leaves_what_was_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def stop() -> Result:
        raise KeyboardInterrupt

    file = tmp_path / "report.json"
    cases = [Case("sequence", "one", lambda: Result(7, "tokens")), Case("seed", "two", stop)]
    bring(monkeypatch, get("shallow").model)
    monkeypatch.setattr(verify, "cases", lambda subject: [*cases, cases[0]])
    said = run(capsys, "verify", "--model", "mine", "--json", str(file))
    assert said.status == 130
    assert said.out.startswith("speculate verify: OK so far, interrupted\n")
    assert "0 differences in 7 comparisons, 1 check\n" in said.out
    assert "not run: 2 of 3 checks" in said.out
    written = json.loads(file.read_text())
    assert written["interrupted"] and len(written["models"][0]["checks"]) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--model", "nowhere/at/all"), "nowhere/at/all: there is no such folder"),
        (("--model", "hybrid", "--tokens", "0"), "must be at least 1, got 0"),
        (("--head", "hybrid"), "--head requires --model"),
        (("--json", "no/such/folder/x.json"), "cannot be written to no/such/folder/x.json"),
        (("--json", "."), "the report cannot be written to .: Is a directory"),
    ],
)
def test_bad_input_is_reported_in_a_line(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    found = run(capsys, "verify", *options)
    assert found.status == 2 and found.out == ""
    assert said in found.err and len(found.err.splitlines()) == 1


def test_another_vocabulary_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = adapted(get("small_dense").module, vocabulary={str(n): n for n in range(64)}).model
    model = adapted(hybrid().module, vocabulary={f"<{n}>": n for n in range(64)}).model
    bring(monkeypatch, model, other)
    said = run(capsys, "verify", "--model", "mine", "--draft", "draft")
    assert said.status == 2 and "speculate: error:" in said.err


def test_a_draft_for_some_of_the_models_is_refused_before_anything_is_checked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    models = {name: get("shallow").model for name in ("hybrid", "draft")}
    other = adapted(get("dense").module, vocabulary={f"<{n}>": n for n in range(64)}).model
    mine = adapted(get("small_dense").module, vocabulary={str(n): n for n in range(64)}).model
    found = {**models, "windowed": other, "mine": mine}
    monkeypatch.setattr(command, "load_named", lambda name, head=None: (found[name], Words()))
    monkeypatch.setattr(verify, "cases", lambda subject: pytest.fail("checked"))
    assert run(capsys, "verify", "--draft", "mine").status == 2


def test_what_does_not_run_here_is_no_bug(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: object, **kwargs: object) -> None:
        raise RuntimeError("[GatherMM] only supports float32")

    bring(monkeypatch, get("shallow").model)
    monkeypatch.setattr(verify.VerificationTarget, "rounding", property(fails))
    said = run(capsys, "verify", "--model", "mine")
    assert said.status == 2
    assert "mine: does not run on this machine: RuntimeError: [GatherMM]" in said.err


def test_a_report_that_is_there_stays_until_there_is_another(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "report.json"
    file.write_text("before")
    assert run(capsys, "verify", "--model", "nowhere", "--json", str(file)).status == 2
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]
