"""Draws why a KV cache rewinds easily, and a window and a recurrent state do not.

`python tools/draw_caches.py` writes `docs/assets/caches.svg`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

TARGET: Final = Path(__file__).resolve().parent.parent / "docs" / "assets" / "caches.svg"
CELL: Final = 34
STYLE: Final = (
    "text{font-family:system-ui,sans-serif;font-size:13px;fill:#1f2430}"
    ".small{font-size:12px;fill:#4a5162}rect{stroke:#7d89a8}.text{fill:#e9edf7}"
    ".kept{fill:#dcefe3}.wrong{fill:#f8dcd8}path{fill:none;stroke:#7d89a8;stroke-width:1.2}"
)

Cell = tuple[str, str]


def row(left: float, top: float, cells: list[Cell]) -> list[str]:
    """Cells side by side, each with a label."""
    parts = []
    for index, (label, kind) in enumerate(cells):
        x = left + index * CELL
        box = f'x="{x:g}" y="{top:g}" width="{CELL}" height="{CELL}"'
        parts.append(f'<rect class="{kind}" {box}/>')
        parts.append(text(x + CELL / 2, top + 22, label, "", "middle"))
    return parts


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """One line of text."""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{words}</text>'


def arrow(x: float, y: float, length: float) -> str:
    """To the right."""
    return f'<path d="M{x:g} {y:g} h{length:g} m-6 -4 l6 4 l-6 4"/>'


def draw() -> str:
    """Draw three caches after `a b c d e f` and the drafts `X Y Z`, of which `X` is accepted."""
    old: list[Cell] = [(letter, "text") for letter in "abcdef"]
    drafts: list[Cell] = [("X", "kept"), ("Y", "wrong"), ("Z", "wrong")]
    parts = [text(20, 28, "Full attention: a row for each token. A rewind moves an index.")]
    parts += row(20, 42, [*old, *drafts])
    parts.append(text(20 + 7 * CELL, 96, "end", "small", "middle"))
    parts.append(text(350, 64, "X is accepted", "small"))
    parts.append(text(20, 140, "Sliding window of six rows: what Y and Z overwrote is lost."))
    parts += row(20, 154, [*drafts, ("d", "text"), ("e", "text"), ("f", "text")])
    parts.append(text(350, 176, "b and c are needed again", "small"))
    parts.append(text(20, 232, "Recurrent state: one matrix that every token changes."))
    parts += row(20, 246, [("S", "text")])
    parts += [arrow(60, 263, 40), text(80, 254, "X", "small", "middle")]
    parts += row(106, 246, [("S", "kept")])
    parts += [arrow(146, 263, 40), text(166, 254, "Y", "small", "middle")]
    parts += row(192, 246, [("S", "wrong")])
    parts += [arrow(232, 263, 40), text(252, 254, "Z", "small", "middle")]
    parts += row(278, 246, [("S", "wrong")])
    parts.append(text(350, 268, "only the last state is stored", "small"))
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 560 300" role="img">'
        f"<title>Three kinds of caches</title><style>{STYLE}</style>"
        '<rect style="fill:#ffffff;stroke:none" width="560" height="300" rx="8"/>'
        + "\n".join(parts)
        + "</svg>\n"
    )


if __name__ == "__main__":
    TARGET.write_text(draw(), encoding="utf-8")
