"""Builds the documentation as a site of plain HTML: `make site` writes it to `build/site`.

A generator of our own, because the pages are the repository's own Markdown files: README,
ARCHITECTURE and `deploy/` belong to them, and MkDocs and its like want one folder for all pages. It
needs two packages that are installed anyway, and its pages load nothing but one stylesheet.

A page keeps its path, with `.html`; `README` becomes `index`. What a page links to and is not a
page, such as a test or a file of `deploy/`, is copied.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from docs.pages import MARKDOWN, ROOT, Page, pages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TARGET = ROOT / "build" / "site"
_THEME = Path(__file__).parent / "theme"
_STYLE = "site.css"
_SECTIONS = {
    "Tutorials": "docs/tutorial",
    "Guides": "docs/guides",
    "Reference": "docs/reference",
    "Formats": "docs/formats",
    "Documentation": "docs",
    "Deployment": "deploy",
    "Project": ".",
}


def address(path: Path) -> Path:
    """Where a file of the repository is on the site.

    >>> [address(Path(name)).as_posix() for name in ("README.md", "docs/a.md", "deploy/b.yml")]
    ['index.html', 'docs/a.html', 'deploy/b.yml']
    """
    if path.suffix != ".md":
        return path
    return path.with_name("index.html" if path.stem == "README" else f"{path.stem}.html")


def build(target: Path = TARGET) -> None:
    """Write the site; what was in the folder before is removed."""
    shutil.rmtree(target, ignore_errors=True)
    found = {page.path: page for page in pages()}
    template = Environment(
        loader=FileSystemLoader(_THEME), autoescape=True, undefined=StrictUndefined
    ).get_template("page.html")
    for page in found.values():
        content = _content(page, found, target)
        html = template.render(
            title=page.title,
            content=content,
            style=_relative(Path(_STYLE), page),
            home=_relative(Path("index.html"), page),
            sections=_sections(page, list(found.values())),
        )
        file = target / address(page.path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(html)
    shutil.copy(_THEME / _STYLE, target / _STYLE)


def _content(page: Page, found: Mapping[Path, Page], target: Path) -> str:
    """Its HTML, with links to the pages of the site; other files are copied to it."""
    for token, name, link in page.link_tokens:
        if link.target not in found:
            copy = target / link.target
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / link.target, copy)
        anchor = f"#{link.anchor}" if link.anchor else ""
        token.attrSet(name, f"{_relative(address(link.target), page)}{anchor}")
    return str(MARKDOWN.renderer.render(page.tokens, MARKDOWN.options, {}))


def _sections(page: Page, found: Sequence[Page]) -> dict[str, list[tuple[str, str, bool]]]:
    """The navigation: title, address, and whether it is this page."""
    return {
        name: [
            (each.title, _relative(address(each.path), page), each == page)
            for each in found
            if each.path.parent == Path(folder) and each.path != Path("README.md")
        ]
        for name, folder in _SECTIONS.items()
    }


def _relative(target: Path, page: Page) -> str:
    """The address of a file of the site, from a page."""
    up = len(page.path.parts) - 1
    return "/".join((*[".."] * up, target.as_posix()))


if __name__ == "__main__":
    build()
    sys.stdout.write(f"{TARGET / 'index.html'}\n")
