"""Destinations of the sink `http`: a path, or a method and a path, such as `PUT /orders/7`."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote_to_bytes

from tailrace.sinks.destination import Template

_METHOD = re.compile(rb"(?:(DELETE|PATCH|POST|PUT) )?")
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
        """A name as one segment of a path."""
        return quote(name, safe="")


def split(destination: bytes) -> tuple[str, bytes]:
    """The method that a destination names, or an empty text, and its path.

    >>> split(b"PUT /orders/7"), split(b"/orders"), split(b"GET /orders")
    (('PUT', b'/orders/7'), ('', b'/orders'), ('', b'GET /orders'))
    """
    match = _METHOD.match(destination)
    assert match is not None
    return (match[1] or b"").decode(), destination[match.end() :]


def is_path(destination: bytes) -> bool:
    """Whether the path of a destination can be appended to a URL.

    Segments of dots name another folder, and servers decode them first.

    >>> is_path(b"/orders?x=1"), is_path(b"orders"), is_path(b"/a b"), is_path(b"//evil.example/")
    (True, False, False, False)
    >>> is_path(b"/a/../b"), is_path(b"/a/%2e%2E"), is_path(b"/a/..b?c=/../d")
    (False, False, True)
    """
    segments = unquote_to_bytes(destination.partition(b"?")[0]).split(b"/")
    return (
        len(destination) <= 4000
        and _PATH.fullmatch(destination) is not None
        and not destination.startswith(b"//")
        and b"#" not in destination
        and not {b".", b".."} & set(segments)
    )
