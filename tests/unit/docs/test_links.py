"""Links between the pages of the documentation: files and anchors exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.pages import ROOT, Page, pages

PAGES = {page.path: page for page in pages()}


@pytest.mark.parametrize("page", PAGES.values(), ids=lambda page: page.path.as_posix())
def test_links_lead_somewhere(page: Page) -> None:
    """GIVEN the links of a page inside the repository THEN their files exist, and so do their
    anchors."""
    lost = []
    for _, _, link in page.link_tokens:
        anchors = PAGES[link.target].anchors if link.target in PAGES else frozenset[str]()
        if not (ROOT / link.target).is_file() or (link.anchor and link.anchor not in anchors):
            lost.append(f"{link.target}#{link.anchor}")
    assert lost == []


def test_pages_are_found() -> None:
    expected = {"README.md", "ARCHITECTURE.md", "deploy/README.md", "docs/guides/run.md"}
    assert {Path(name) for name in expected} <= PAGES.keys()
    assert sum(1 for page in PAGES.values() for _ in page.link_tokens) > 200


def test_every_guide_can_be_found_from_the_readme() -> None:
    """GIVEN the links of the README, and those of the pages that they lead to THEN every page of
    the documentation is among them."""
    found = {Path("README.md")}
    queue = [PAGES[Path("README.md")]]
    while queue:
        targets = {link.target for _, _, link in queue.pop().link_tokens} & PAGES.keys()
        queue += [PAGES[target] for target in targets - found]
        found |= targets
    assert {path for path in PAGES if path.parts[0] in ("docs", "deploy")} <= found


def test_anchors_are_those_of_the_hosting() -> None:
    assert "two-bridges-on-one-nats-server" in PAGES[Path("docs/guides/bridge.md")].anchors
    assert "W1" in PAGES[Path("docs/security.md")].anchors
