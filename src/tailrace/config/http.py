"""Settings of the HTTP endpoints."""

from __future__ import annotations

import re
from pathlib import Path  # noqa: TC003 - pydantic reads the annotations
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from tailrace.access import password
from tailrace.settings import Section

_TOKEN = re.compile(r"[!-~]{16,}")


def _token(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    if text and _TOKEN.fullmatch(text) is None:
        raise ValueError("must be at least 16 printable ASCII characters without blanks")
    return value


def _password(value: SecretStr) -> SecretStr:
    password.parse(value.get_secret_value())
    return value


def _user_name(name: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9._@-]{1,63}", name) is None:
        raise ValueError("a user name must be 1 to 63 of the characters A-Z, a-z, 0-9, . _ @ and -")
    return name


class User(Section):
    """A user of the console and of the endpoints."""

    role: Literal["viewer", "operator"] = Field(
        default="viewer",
        description="viewer: read everything. operator: change the running system, too.",
    )
    password: Annotated[SecretStr, AfterValidator(_password)] = Field(
        description="Hash of the password, as `tailrace user add` prints it."
    )


class HttpTls(Section):
    """TLS of the HTTP endpoints."""

    certificate: Path = Field(description="PEM file with the certificate and its chain.")
    key: Path = Field(description="PEM file with the private key.")


class Http(Section):
    """The HTTP endpoints and the console: status, metrics, backfills, parked messages, shutdown."""

    host: str = Field(
        default="127.0.0.1",
        description=(
            "Address to listen on. Beyond loopback, `users` and `tls` are needed, or `insecure`."
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
    users: dict[Annotated[str, AfterValidator(_user_name)], User] = Field(
        default={},
        description="Users by name. With users, all requests but /health and /ready need a login.",
    )
    tls: HttpTls | None = Field(default=None, description=HttpTls.__doc__)
    insecure: bool = Field(
        default=False,
        description=(
            "Listen beyond loopback without users or without TLS: in a trusted network, or behind "
            "a proxy that has both."
        ),
    )
