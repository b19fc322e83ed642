"""Each default that the help or the documentation states is the one that the code has.

Numbers are stated as `name` defaults to 3, or in a table's column called default; whatever else is
said of a default is listed in `IN_WORDS`, with what makes it true.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
from mlx_lm.generate import generate_step, setup_arg_parser
from mlx_lm.sample_utils import make_logits_processors, make_sampler

import speculate as sp
from speculate.cli._models import strategy_for
from speculate.cli.main import COMMANDS, make_parser
from speculate.integrations.mlx_lm import mtp_generate_step, speculative_generate_step
from speculate.loading import DEMO_MODELS

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

PUBLIC: Final[list[Callable[..., object]]] = [
    sp.load, sp.load_mtp_head, sp.adapt, sp.generate, sp.stream_generate, sp.Decoder,
    sp.Decoder.generate, sp.Sampling, sp.Fixed, sp.Adaptive, sp.MTPChain, sp.DraftModel,
    sp.PromptLookup, speculative_generate_step, mtp_generate_step,
]  # fmt: skip

STATED: Final = re.compile(
    r"`(?P<name>-{0,2}[\w-]+)`(?:(?!`|\n).)*?"
    r"(?P<lm>with mlx-lm )?(?:it )?defaults to `?(?P<value>[\w.-]*\w)`?"
    r"(?:, with mlx-lm to `?(?P<other>[\w.-]*\w)`?)?"
)
"""`name`, and what it defaults to: here, with mlx-lm, or both."""

SAID: Final = re.compile(r"default|where nothing is said|where it is left out", re.IGNORECASE)

OTHERS: Final = re.compile(r"mlx-vlm|in transformers|SGLang")
"""Whose defaults are not ours."""


def greedy() -> bool:
    return sp.Sampling().temperature == 0.0


def coupled() -> bool:
    return sp.Sampling().mode == "coupled"


def adaptive() -> bool:
    model, _ = sp.load()
    found = strategy_for(model, None, None, None)
    names = [proposer.name for proposer in found.proposers]
    return isinstance(found, sp.Adaptive) and names == ["mtp", "lookup"]


def as_mlx_lm() -> bool:
    """Of all options but `top_p`, whose two defaults are stated as numbers."""
    ours = defaults_of(sp.Sampling)
    theirs = {**defaults_of(make_sampler), **defaults_of(make_logits_processors)}
    theirs["temperature"] = theirs.pop("temp")
    empty: set[object] = {None, ()}
    return all(
        ours[name] == theirs[name] or {ours[name], theirs[name]} == empty
        for name in theirs.keys() - {"top_p"}
    )


IN_WORDS: Final[Mapping[str, Callable[[], bool]]] = {
    "temperature 0, the default": greedy,
    "`coupled`, the default": coupled,
    "temperature above 0, the default there": coupled,
    "the default of a `Decoder`": adaptive,
    "adaptive (default)": adaptive,
    "The default is the head and the lookup": adaptive,
    "with the same defaults and the same order": as_mlx_lm,
}


def defaults_of(what: Callable[..., object]) -> dict[str, object]:
    found = inspect.signature(what).parameters.values()
    return {each.name: each.default for each in found if each.default is not each.empty}


def options_of(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return {name: action for action in parser._actions for name in action.option_strings}


def commands() -> dict[str, argparse.ArgumentParser]:
    (found,) = (a for a in make_parser()._actions if isinstance(a, argparse._SubParsersAction))
    return dict(found.choices)


def defaults(name: str) -> set[object]:
    """What a name defaults to in the code: of `speculate generate`, or of all that is public."""
    if name.startswith("-"):
        return {options_of(commands()["generate"])[name].default}
    return {found[name] for found in map(defaults_of, PUBLIC) if name in found}


def defaults_of_mlx_lm(name: str) -> set[object]:
    if name.startswith("-"):
        return {options_of(setup_arg_parser())[name].default}
    sampler, processors = defaults_of(make_sampler), defaults_of(make_logits_processors)
    named = (sampler, processors, defaults_of(generate_step))
    return {found[name] for found in named if name in found}


def read(text: str) -> object:
    """A value as it stands on a page; `None` for words, which say what happens without one."""
    try:
        return ast.literal_eval(text.strip("`"))
    except (SyntaxError, ValueError):
        return None


def statements() -> Iterator[tuple[str, str, str, bool]]:
    """Page, name, value and whether it is mlx-lm's, of each default that is stated as a value."""
    for page in PAGES:
        for found in STATED.finditer(page.read_text(encoding="utf-8")):
            yield page.name, found["name"], found["value"], found["lm"] is not None
            if found["other"]:
                yield page.name, found["name"], found["other"], True
        for name, value in in_tables(page.read_text(encoding="utf-8")):
            yield page.name, name, value, False


def in_tables(text: str) -> Iterator[tuple[str, str]]:
    """Names and values of the tables that have a column for defaults."""
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        header, _, *rows = ([cell.strip() for cell in row.split("|")] for row in table.splitlines())
        if "default" in header:
            for row in rows:
                yield row[1].strip("`"), row[header.index("default")]


def test_stated_values_are_those_of_the_code() -> None:
    wrong, count = [], 0
    for page, name, value, theirs in statements():
        found = (defaults_of_mlx_lm if theirs else defaults)(name)
        count += 1
        if found != {read(value)}:
            owner = " of mlx-lm" if theirs else ""
            wrong.append(f"{page}: {name}{owner} defaults to {value}, and in the code to {found}")
    assert not wrong, "\n".join(wrong)
    assert count >= 10


def test_whatever_else_is_said_of_a_default_is_known() -> None:
    unknown = []
    for page in PAGES:
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            known = STATED.search(line) or OTHERS.search(line) or any(w in line for w in IN_WORDS)
            header = line.startswith("|") and "| default |" in line
            if SAID.search(line) and not known and not header:
                unknown.append(f"{page.name}:{number}: {line}")
    assert not unknown, "say `name` defaults to VALUE, or add it to IN_WORDS:\n" + "\n".join(
        unknown
    )


@pytest.mark.parametrize("words", IN_WORDS)
def test_what_is_said_in_words(words: str) -> None:
    assert any(words in page.read_text(encoding="utf-8") for page in PAGES), "no page says this"
    assert IN_WORDS[words]()


def test_options_that_are_called_the_same_as_mlx_lms_say_where_their_defaults_differ() -> None:
    ours = options_of(commands()["generate"])
    theirs = options_of(setup_arg_parser())
    page = (ROOT / "docs" / "moving.md").read_text(encoding="utf-8")
    told = {name for where, name, _, _ in statements() if where == "moving.md"}
    named = set(
        re.findall(r"`(--[\w-]+)`", "".join(re.findall(r"^\| `--.*?\|", page, re.MULTILINE)))
    )
    # Which model and which text to begin with is not said by a value.
    both = {
        name for name in named & ours.keys() & theirs.keys() if name not in ("--model", "--prompt")
    }
    assert len(both) > 15
    assert {name for name in both if ours[name].default != theirs[name].default} == {
        name for name in both & told
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_takes_its_defaults_from_the_parser(name: str) -> None:
    for action in commands()[name]._actions:
        for stated in re.findall(r"\(default: ([^)]*\)?[^)]*)\)", action.help or ""):
            if stated.startswith("%(default)"):
                assert action.default not in (None, argparse.SUPPRESS), action.dest
            else:
                # Nothing is preset, so that it is found out what was meant.
                assert action.default is None, f"{action.dest}: say %(default)s"
                if action.dest in ("model", "path"):
                    assert stated.split(",")[0] == DEMO_MODELS[0]
                else:
                    assert not re.search(r"\d", stated), action.dest


def test_the_command_line_has_the_librarys_defaults() -> None:
    library = {**defaults_of(sp.Decoder), **defaults_of(sp.Sampling), **defaults_of(sp.generate)}
    library["temp"] = library.pop("temperature")
    compared = 0
    for action in commands()["generate"]._actions:
        if action.dest in library and action.dest != "chat_template":  # on, off, or as it is
            assert action.default == library[action.dest] or action.dest == "stop", action.dest
            compared += 1
    assert compared > 15
