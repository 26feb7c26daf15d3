"""Paths of the sink `http`: templates filled with escaped names."""

from __future__ import annotations

import re
from urllib.parse import quote

from tailrace.sinks.destination import Template

_PATH = re.compile(rb"/[!-~]*")


class PathTemplate(Template):
    """A template such as `/{schema}/{table}`.

    >>> from tailrace.change import Op
    >>> PathTemplate("/{schema}/{table}", database="shop").fill("public", "my orders", Op.INSERT)
    '/public/my%20orders'
    """

    kind = "path"

    @staticmethod
    def token(name: str) -> str:
        """A name as one segment of a path. Dots alone would name another folder."""
        return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")


def is_path(destination: bytes) -> bool:
    """Whether a destination can be appended to a URL.

    >>> is_path(b"/orders?x=1"), is_path(b"orders"), is_path(b"/a b"), is_path(b"//evil.example/")
    (True, False, False, False)
    """
    return (
        len(destination) <= 4000
        and _PATH.fullmatch(destination) is not None
        and not destination.startswith(b"//")
        and b"#" not in destination
    )
