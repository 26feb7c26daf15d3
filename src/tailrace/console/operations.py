"""The documents and actions of `/api/v1`, for commands: on this machine, or over HTTP.

`tailrace.console.local` reads the files of the data folder, `tailrace.console.remote` asks a
server. Both answer with the same documents, so a command prints the same for either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tailrace.console.page import Document, Effect

Body = dict[str, Any]


class Operations(Protocol):
    """A system that a command reads and changes. Errors are those of `tailrace.errors`."""

    def get(self, path: str, query: Mapping[str, object] | None = None) -> Document:
        """The document of a page. Parameters that are empty or None are not sent."""

    def effect(self, path: str, body: Body) -> Effect:
        """What an action would do."""

    def perform(self, path: str, body: Body) -> Document:
        """Do it."""


def path_of(*parts: object) -> str:
    """A path whose parts may contain any character.

    >>> path_of("parked", "orders/eu", 7)
    '/parked/orders%2Feu/7'
    """
    return "".join(f"/{quote(str(part), safe='')}" for part in parts)


def sent(query: Mapping[str, object] | None) -> dict[str, str]:
    """The parameters that are set, as text."""
    return {name: str(value) for name, value in (query or {}).items() if value not in (None, "")}
