"""The documentation as a site: complete, its links lead to files, and it loads nothing else."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pytest

from docs.pages import pages
from docs.site import address, build

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Document(HTMLParser):
    """The ids and links of a page, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif name in ("href", "src") and value:
                (self.links if tag == "a" else self.loaded).append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build(folder)
    return folder


@pytest.fixture(scope="module")
def documents(site: Path) -> dict[Path, Document]:
    return {path: Document(path.read_text()) for path in site.rglob("*.html")}


def test_every_page_is_there(site: Path, documents: dict[Path, Document]) -> None:
    assert documents.keys() == {site / address(page.path) for page in pages()}


def test_every_link_leads_to_a_file_and_an_id(documents: dict[Path, Document]) -> None:
    lost = []
    for path, document in documents.items():
        for link in document.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            known = documents[target].ids if target in documents else set()
            if not target.is_file() or (parts.fragment and parts.fragment not in known):
                lost.append((path.name, link))
    assert lost == []


def test_pages_load_the_stylesheet_and_pictures_of_the_site(
    site: Path, documents: dict[Path, Document]
) -> None:
    for path, document in documents.items():
        style, *pictures = [(path.parent / each).resolve() for each in document.loaded]
        assert style == site / "site.css"
        for picture in pictures:
            assert picture.is_relative_to(site)
            assert picture.read_bytes().startswith(b"\x89PNG")
        assert "script" not in document.tags


def test_every_page_has_the_navigation(site: Path, documents: dict[Path, Document]) -> None:
    """GIVEN any page THEN its links lead to every other one."""
    for path, document in documents.items():
        targets = {(path.parent / link.partition("#")[0]).resolve() for link in document.links}
        assert documents.keys() <= targets | {path}, path


def test_building_twice_removes_old_pages(tmp_path: Path) -> None:
    (tmp_path / "old.html").write_text("old")
    build(tmp_path)
    assert not (tmp_path / "old.html").exists()
