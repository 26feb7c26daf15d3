"""Settings of the sink `http`."""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path  # noqa: TC003 - pydantic reads the annotations
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator

from tailrace.settings import is_loopback
from tailrace.sinks.requests.settings import RequestSettings

SECRET_PREFIX = "whsec_"  # noqa: S105 - what a secret begins with
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[!-~]+(?:[ \t]+[!-~]+)*")
_URL = re.compile(r"[!-~]+")
OURS = {
    "connection", "content-length", "content-type", "content-encoding", "host",
    "transfer-encoding", "user-agent", "webhook-id", "webhook-timestamp", "webhook-signature",
}  # fmt: skip


def _url(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    parts = urlsplit(text)
    try:
        valid = parts.port != 0 and _URL.fullmatch(text) is not None
    except ValueError:
        valid = False
    if not valid or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an http:// or https:// URL")
    if parts.username or parts.password:
        raise ValueError("must not contain a user: set the header `Authorization` instead")
    if parts.query or parts.fragment:
        raise ValueError("must not contain a query or a fragment: set them in `path`")
    return value


def _path(value: str) -> str:
    if value and not value.startswith("/"):
        raise ValueError("must start with `/`")
    return value


def _content_type(value: str) -> str:
    if _VALUE.fullmatch(value) is None:
        raise ValueError("must be a content type such as application/json")
    return value


def _headers(values: dict[str, SecretStr]) -> dict[str, SecretStr]:
    for name, value in values.items():
        if _TOKEN.fullmatch(name) is None or _VALUE.fullmatch(value.get_secret_value()) is None:
            raise ValueError(f"{name!r} is not a valid header")
        if name.lower() in OURS:
            raise ValueError(f"{name} cannot be set: the sink sets it")
    return values


def _secret(value: SecretStr) -> SecretStr:
    text = value.get_secret_value().removeprefix(SECRET_PREFIX)
    try:
        length = len(base64.b64decode(text, validate=True))
    except binascii.Error:
        length = 0
    if text and not 24 <= length <= 64:
        raise ValueError(f"must be {SECRET_PREFIX} and 24 to 64 bytes in Base64")
    return value


class HttpSink(RequestSettings):
    """Webhooks over HTTP."""

    type: Literal["http"] = Field(description="This sink: `http`.")
    url: Annotated[SecretStr, AfterValidator(_url)] = Field(
        description="Address of the receiver, http:// or https://."
    )
    path: Annotated[str, AfterValidator(_path)] = Field(
        default="",
        description=(
            "Appended to `url` when the pipeline has no `route`: {schema}, {table}, {operation} "
            "and {database} are replaced with escaped names."
        ),
    )
    method: Literal["POST", "PUT", "PATCH"] = Field(
        default="POST", description="Method. A `route` may name another one: `PUT /orders/7`."
    )
    headers: Annotated[dict[str, SecretStr], AfterValidator(_headers)] = Field(
        default={}, description="Headers of every request."
    )
    body: Literal["message", "array"] = Field(
        default="message",
        description="One message per request, or a JSON array of up to `batch_rows`.",
    )
    content_type: Annotated[str, AfterValidator(_content_type)] = Field(
        default="application/json", description="Content type of a message."
    )
    compression: Literal["none", "gzip"] = Field(
        default="none", description="Compression of bodies."
    )
    secret: Annotated[SecretStr, AfterValidator(_secret)] = Field(
        default=SecretStr(""),
        description=f"Signs requests as Standard Webhooks describes; {SECRET_PREFIX}BASE64.",
    )
    http2: bool = Field(default=False, description="Use HTTP/2 if the receiver offers it with TLS.")
    allow_private: bool = Field(
        default=False,
        description="Allow receivers on private, link-local and loopback addresses.",
    )
    tls_ca: Path | None = Field(default=None, description="Certificate authority to trust.")
    tls_certificate: Path | None = Field(default=None, description="Client certificate.")
    tls_key: Path | None = Field(default=None, description="Key of the client certificate.")

    @property
    def template(self) -> str:
        """The path below `url`."""
        return self.path or "/"

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.batch_rows > 1 and self.body == "message":
            raise ValueError("`batch_rows` above 1 needs `body: array`")
        if self.body == "array" and not self.content_type.startswith("application/json"):
            raise ValueError("`body: array` needs the content type application/json")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("`tls_certificate` and `tls_key` must be set together")
        url = urlsplit(self.url.get_secret_value())
        if self.headers and url.scheme == "http" and not is_loopback(url.hostname or ""):
            raise ValueError("`headers` would be sent unencrypted: use an https:// URL")
        return self
