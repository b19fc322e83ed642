"""Draws the package's layers and a decoding round from the code's imports and methods.

`python tools/draw_architecture.py` writes `docs/assets/layers.svg` and `docs/assets/round.svg`;
a test fails when they are out of date.
"""

from __future__ import annotations

import ast
import html
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = ROOT / "speculate"
EVERYWHERE: Final = ("protocols", "validation", "errors")

LOOP: Final = ("decoding.generation", "Generation.tokens")
"""The module and the function that the picture of a round is drawn from."""

STEPS: Final = {
    "_next_plan": ("plan", "the strategy plans a proposer and a depth"),
    "draft": ("propose", "the proposer drafts k tokens"),
    "forward": ("forward", "the target scores k + 1 rows"),
    "verify": ("verify", "accepts a prefix, adds the bonus token"),
    "_read": ("wait", "the round's one synchronisation"),
    "_emit": ("emit", "accepted drafts, then the bonus token"),
    "_keep_emitted": ("keep", "caches roll back the rest, proposers are notified"),
    "_observe": ("observe", "counts the round, notifies strategy and observer"),
}
"""The steps of a round: method called in the loop -> name and explanation."""

STYLE: Final = (
    "text{font-family:system-ui,sans-serif;font-size:13px;fill:#1f2430}"
    ".small{font-size:11px;fill:#4a5162}.mono{font-family:ui-monospace,monospace;font-size:11px;"
    "fill:#4a5162}rect{fill:#e9edf7;stroke:#7d89a8}.base{fill:#dcefe3;stroke:#6d9a80}"
    "path{fill:none;stroke:#7d89a8;stroke-width:1.2}"
)


def layers() -> list[list[str]]:
    """The layers of the import contract in pyproject.toml, top to bottom."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = next(
        one for one in settings["tool"]["importlinter"]["contracts"] if one["type"] == "layers"
    )
    return [
        [name.strip(" ()").removeprefix("speculate.") for name in layer.split("|")]
        for layer in contract["layers"]
    ]


def imports() -> set[tuple[str, str]]:
    """Return the (importing, imported) pairs of folders."""
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        folder = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for module in _imported(path):
            parts = module.split(".")
            if len(parts) > 1 and parts[1] != folder:
                found.add((folder, parts[1]))
    return found


def draw_layers() -> str:
    """Draw folders by layer, with an arrow for each import except to the shared base."""
    rows, places, parts = layers(), {}, []
    width, height, gap = 132, 38, 22
    total = max(len(row) for row in rows) * (width + gap) + gap
    for level, row in enumerate(rows):
        left = (total - len(row) * (width + gap) + gap) / 2
        for index, name in enumerate(row):
            places[name] = (left + index * (width + gap), 16 + level * 84)
    for source, target in sorted(imports()):
        if source in places and target in places and target not in EVERYWHERE:
            parts.append(_arrow(places[source], places[target], width, height))
    for name, (x, y) in places.items():
        kind = ' class="base"' if name in EVERYWHERE else ""
        parts.append(f'<rect{kind} x="{x:g}" y="{y}" width="{width}" height="{height}" rx="6"/>')
        parts.append(_text(x + width / 2, y + 24, name))
    note = "Everything may import protocols, validation and errors; those arrows are left out."
    bottom = 16 + len(rows) * 84
    parts.append(_text(total / 2, bottom - 14, note, "small"))
    return _svg(total, bottom, parts, "The folders of the package, by layer")


def steps() -> list[tuple[str, str, str]]:
    """Return name, explanation and code of the round's steps, in the order of the loop's lines."""
    loop = _function(*LOOP)
    calls = [node for node in ast.walk(loop) if isinstance(node, ast.Call)]
    found = []
    for call in sorted(calls, key=lambda call: (call.lineno, call.col_offset)):
        if isinstance(call.func, ast.Attribute) and call.func.attr in STEPS:
            found.append((*STEPS[call.func.attr], ast.unparse(call.func)))
    if len(found) != len(STEPS):
        raise LookupError(f"{'.'.join(LOOP)} has {len(found)} of {len(STEPS)} STEPS: update them")
    return found


def draw_round() -> str:
    """Draw the steps of a round from top to bottom, with the call of each."""
    parts: list[str] = []
    for index, (step, what, code) in enumerate(steps()):
        y = 12 + index * 56
        if index:
            parts.append(f'<path d="M90 {y - 16} v10 m-4 -5 l4 5 l4 -5"/>')
        parts.append(f'<rect x="20" y="{y}" width="140" height="38" rx="6"/>')
        parts.append(_text(90, y + 24, step))
        parts.append(_text(180, y + 16, what, "small", "start"))
        parts.append(_text(180, y + 32, code, "mono", "start"))
    return _svg(560, 12 + len(STEPS) * 56, parts, "One round of decoding")


def pictures() -> dict[Path, str]:
    """Return the content of each picture file."""
    assets = ROOT / "docs" / "assets"
    return {assets / "layers.svg": draw_layers(), assets / "round.svg": draw_round()}


def main() -> None:
    for path, content in pictures().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="utf-8")


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("speculate"):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.startswith("speculate"))


def _function(module: str, member: str) -> ast.stmt:
    """Return the definition of a class's method."""
    path = PACKAGE / f"{module.replace('.', '/')}.py"
    node: ast.Module | ast.stmt = ast.parse(path.read_text(encoding="utf-8"))
    for name in member.split("."):
        assert isinstance(node, ast.Module | ast.ClassDef)
        definitions = (one for one in node.body if isinstance(one, ast.ClassDef | ast.FunctionDef))
        node = next(one for one in definitions if one.name == name)
    assert isinstance(node, ast.FunctionDef)
    return node


def _arrow(
    source: tuple[float, float], target: tuple[float, float], width: int, height: int
) -> str:
    x, y = source[0] + width / 2, source[1] + height
    to_x, to_y = target[0] + width / 2, target[1]
    bend = (to_y - y) / 2
    return (
        f'<path d="M{x:g} {y:g} C{x:g} {y + bend:g} {to_x:g} {to_y - bend:g} {to_x:g} {to_y:g} '
        f'm-4 -6 l4 6 l4 -6"/>'
    )


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "middle") -> str:
    mark = f' class="{kind}"' if kind else ""
    return f'<text{mark} x="{x:g}" y="{y:g}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _svg(width: float, height: float, parts: list[str], title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">'
        f"<title>{title}</title><style>{STYLE}</style>"
        f'<rect style="fill:#ffffff;stroke:none" width="{width:g}" height="{height:g}" rx="8"/>'
        + "\n".join(parts)
        + "</svg>\n"
    )


if __name__ == "__main__":
    main()
