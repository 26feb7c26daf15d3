"""Settings of the HTTP endpoints."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

from tailrace.settings import Section

_TOKEN = re.compile(r"[!-~]{16,}")


def _token(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    if text and _TOKEN.fullmatch(text) is None:
        raise ValueError("must be at least 16 printable ASCII characters without blanks")
    return value


class Http(Section):
    """The HTTP endpoints: /health, /status, /metrics, /streams/info, backfills and shutdown."""

    host: str = Field(
        default="127.0.0.1",
        description=(
            "Address to listen on. GET requests are unauthenticated: keep it on loopback, or in a "
            "trusted network."
        ),
    )
    port: int = Field(
        default=9090,
        ge=0,
        le=65535,
        description="Port to listen on. 0: no HTTP server.",
    )
    hosts: tuple[str, ...] = Field(
        default=(),
        description=(
            "Names under which clients reach the endpoints, besides `host`, its address and "
            "localhost. Requests to other names are refused."
        ),
    )
    token: Annotated[SecretStr, AfterValidator(_token)] = Field(
        default=SecretStr(""),
        description=(
            "Token that POST requests need, as `Authorization: Bearer TOKEN`. Empty: a random one "
            "in the file `http.token` of the data folder."
        ),
    )
