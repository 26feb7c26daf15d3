"""The pages of the documentation: their titles, anchors and links, as the hosting shows them.

For the site (`docs.site`) and for the test of links. Pages are Markdown files of the repository,
also outside of this folder: a link that works between files works on the site, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markdown_it.token import Token

ROOT = Path(__file__).parent.parent
_PATTERNS = ("*.md", "deploy/*.md", "docs/**/*.md")
_ANCHOR = re.compile(r'<a id="([^"]+)"')
_OUTSIDE = re.compile(r"[a-z]+:")
MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


@dataclass(frozen=True)
class Link:
    """A link to a place in the repository. An empty `anchor` is the top of the file."""

    target: Path
    anchor: str


@dataclass(frozen=True)
class Page:
    """A Markdown file, by its path in the repository."""

    path: Path

    @cached_property
    def tokens(self) -> Sequence[Token]:
        """Its content; headings have their anchors as `id`."""
        tokens = MARKDOWN.parse((ROOT / self.path).read_text())
        taken: dict[str, int] = {}
        for token, inline in pairwise(tokens):
            if token.type == "heading_open":
                anchor = slug(_text(inline))
                number = taken[anchor] = taken.get(anchor, -1) + 1
                token.attrSet("id", f"{anchor}-{number}" if number else anchor)
        return tokens

    @property
    def title(self) -> str:
        """Its first heading."""
        for token, inline in pairwise(self.tokens):
            if token.type == "heading_open":
                return _text(inline)
        return self.path.stem

    @cached_property
    def anchors(self) -> frozenset[str]:
        """What a link may name after `#`."""
        headings = {str(token.attrs["id"]) for token in self.tokens if "id" in token.attrs}
        return frozenset(headings.union(_ANCHOR.findall((ROOT / self.path).read_text())))

    @property
    def link_tokens(self) -> Iterator[tuple[Token, str, Link]]:
        """The tokens of links and pictures inside the repository, and their attributes."""
        for token in self.tokens:
            for child in token.children or ():
                name = {"link_open": "href", "image": "src"}.get(child.type)
                if name is not None and not _OUTSIDE.match(str(child.attrs[name])):
                    yield child, name, self.link(str(child.attrs[name]))

    def link(self, text: str) -> Link:
        """Where a link of this page leads.

        >>> Page(Path("docs/guides/run.md")).link("../security.md#limits").target.as_posix()
        'docs/security.md'
        """
        file, _, anchor = text.partition("#")
        target = (ROOT / self.path).parent / file if file else ROOT / self.path
        return Link(target.resolve().relative_to(ROOT.resolve()), anchor)


def slug(heading: str) -> str:
    """The anchor of a heading.

    >>> slug("What is checked, and `how`?")
    'what-is-checked-and-how'
    """
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def pages() -> list[Page]:
    """All pages."""
    found = {path for pattern in _PATTERNS for path in ROOT.glob(pattern)}
    return [Page(path.relative_to(ROOT)) for path in sorted(found)]


def _text(inline: Token) -> str:
    kinds = ("text", "code_inline")
    return "".join(each.content for each in inline.children or () if each.type in kinds)
