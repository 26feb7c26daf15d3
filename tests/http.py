"""Requests to HTTP endpoints: one client, since each new one reads the certificates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx

from tests.waiting import LONG_S

if TYPE_CHECKING:
    from pathlib import Path

_CLIENT = httpx.Client(
    verify=False, timeout=LONG_S, limits=httpx.Limits(max_keepalive_connections=0)
)
get, post = _CLIENT.get, _CLIENT.post


def authorization(data: Path) -> dict[str, str]:
    """The header that a POST needs, with the token that the server wrote to its data folder."""
    token = (data / "http.token").read_text().strip()
    return {"authorization": f"Bearer {token}"}
