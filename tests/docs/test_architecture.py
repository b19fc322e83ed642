"""The pictures of the architecture show the code as it is."""

from __future__ import annotations

from tools import draw_caches
from tools.draw_architecture import PACKAGE, layers, pictures


def test_the_pictures_are_up_to_date() -> None:
    for path, content in pictures().items():
        assert path.read_text(encoding="utf-8") == content, (
            f"{path.name} is out of date: run python tools/draw_architecture.py"
        )


def test_every_folder_is_in_the_picture_and_on_the_page() -> None:
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert folders <= {name for layer in layers() for name in layer}
    assert all(f"`{folder}/`" in page for folder in folders)


def test_the_picture_of_caches_is_what_its_command_draws() -> None:
    assert draw_caches.TARGET.read_text(encoding="utf-8") == draw_caches.draw()
