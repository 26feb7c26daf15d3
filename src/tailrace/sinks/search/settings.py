"""Settings of the sinks `opensearch` and `elasticsearch`. Loads no client library."""

from __future__ import annotations

import re
from pathlib import Path  # noqa: TC003 - pydantic reads the annotations
from typing import Annotated, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator

from tailrace.settings import Bytes, is_loopback
from tailrace.sinks.destination import LATEST_STATE
from tailrace.sinks.requests.limits import Limits
from tailrace.sinks.requests.settings import RequestSettings
from tailrace.sinks.search.destination import is_index

_PLACE = re.compile(r"\{[^{}]*\}")


class Node(NamedTuple):
    """An address of the cluster."""

    scheme: str
    host: str
    port: int
    path: str
    """What all paths begin with, such as `/search`."""


def _nodes(text: str) -> list[Node]:
    nodes = []
    for each in text.split(","):
        parts = urlsplit(each.strip())
        try:
            port = parts.port or (443 if parts.scheme == "https" else 9200)
        except ValueError:
            port = 0
        if parts.scheme not in ("http", "https") or not parts.hostname or not port:
            raise ValueError("must be http:// or https:// URLs, separated by commas")
        if parts.username or parts.password:
            raise ValueError("must not contain a user: set `user` and `password`")
        if parts.query or parts.fragment:
            raise ValueError("must not contain a query or a fragment")
        nodes.append(Node(parts.scheme, parts.hostname, port, parts.path.rstrip("/")))
    if len({each.scheme for each in nodes}) > 1:
        raise ValueError("must be all http:// or all https:// URLs")
    return nodes


def _url(value: SecretStr) -> SecretStr:
    _nodes(value.get_secret_value())
    return value


def _template(text: str) -> str:
    if not is_index(_PLACE.sub("x", text)):
        raise ValueError(
            "must be the name of an index, such as cdc-{schema}.{table}: no capital letters, no "
            "blanks, and no `-`, `_` or `+` at the start"
        )
    return text


def _index(text: str) -> str:
    if not is_index(text):
        raise ValueError("must be the name of an index")
    return text


class SearchSettings(RequestSettings):
    """Documents in indices."""

    url: Annotated[SecretStr, AfterValidator(_url)] = Field(
        description="Addresses of nodes, http://HOST:PORT or https://, separated by commas."
    )
    user: str = Field(default="", description="User name.")
    password: SecretStr = Field(default=SecretStr(""), description="Password of the user.")
    token: SecretStr = Field(
        default=SecretStr(""), description="Bearer token, instead of a user and a password."
    )
    tls_ca: Path | None = Field(default=None, description="Certificate authority to trust.")
    tls_certificate: Path | None = Field(default=None, description="Client certificate.")
    tls_key: Path | None = Field(default=None, description="Key of the client certificate.")
    mode: Literal["documents", "append"] = Field(
        default="documents",
        description=(
            "`documents`: a document holds the newest state of its row; needs `shape: row`. "
            "`append`: every message becomes a document, also of a data stream."
        ),
    )
    index: Annotated[str, AfterValidator(_template)] = Field(
        default="{schema}.{table}",
        description=(
            "Index, alias or data stream when the pipeline has no `route`. {schema}, {table}, "
            "{operation} and {database} are replaced with escaped names."
        ),
    )
    truncate: Literal["refuse", "ignore"] = Field(
        default="refuse",
        description=(
            "With mode `documents`: what becomes of a TRUNCATE. `ignore` leaves all documents."
        ),
    )
    payload: Literal["json", "binary"] = Field(
        default="json",
        description=(
            "With mode `append`: `json`: the message is the document. `binary`: a field `payload` "
            "holds it in Base64, in any encoding."
        ),
    )
    timestamp: str = Field(
        default="@timestamp",
        max_length=200,
        description="With mode `append`: the field for the time of the commit. Empty: none.",
    )
    histories: Annotated[str, AfterValidator(_index)] = Field(
        default="tailrace-histories",
        description=(
            "Index that notes which log the documents of a pipeline come from. It is created if "
            "it is missing."
        ),
    )
    compression: Literal["none", "gzip"] = Field(
        default="none", description="Compression of requests."
    )
    batch_rows: int = Field(
        default=1000, ge=1, le=10_000, description="Max messages in one bulk request."
    )
    batch_bytes: Bytes = Field(
        default=5 * 2**20,
        ge=1,
        le=2**30,
        description="Max bytes of the messages in one bulk request.",
    )
    concurrency: int = Field(
        default=4,
        ge=1,
        le=1000,
        description="Max requests at a time in each lane. A key has at most one.",
    )

    @property
    def template(self) -> str:
        """The destination; in mode `documents` one that tells deletes apart."""
        return LATEST_STATE + self.index if self.mode == "documents" else self.index

    @property
    def nodes(self) -> list[Node]:
        """The addresses of `url`."""
        return _nodes(self.url.get_secret_value())

    @property
    def limits(self) -> Limits:
        """A bulk request may write to any number of indices."""
        return Limits(
            rows=self.batch_rows,
            bytes=self.batch_bytes,
            concurrency=self.concurrency,
            one_destination=False,
        )

    @property
    def authorizations(self) -> dict[str, str]:
        """The ways of authentication that are set: by setting, its scheme."""
        schemes = {"password": "Basic", "token": "Bearer", "api_key": "ApiKey"}
        return {name: scheme for name, scheme in schemes.items() if self.secret(name)}

    def secret(self, name: str) -> str:
        """The value of a secret setting; empty if this kind of sink does not have it."""
        value = getattr(self, name, SecretStr(""))
        return str(value.get_secret_value())

    @model_validator(mode="after")
    def _consistent_login(self) -> Self:
        if bool(self.user) != bool(self.secret("password")):
            raise ValueError("`user` and `password` must be set together")
        if len(self.authorizations) > 1:
            raise ValueError(f"set only one of {', '.join(self.authorizations)}")
        local = all(node.scheme == "https" or is_loopback(node.host) for node in self.nodes)
        if self.authorizations and not local:
            raise ValueError("the credentials would be sent unencrypted: use an https:// URL")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("`tls_certificate` and `tls_key` must be set together")
        if (self.tls_ca or self.tls_certificate) and self.nodes[0].scheme != "https":
            raise ValueError("the `tls_` settings need https:// URLs")
        return self

    @model_validator(mode="after")
    def _consistent_mode(self) -> Self:
        append = {"payload", "timestamp"} & self.model_fields_set
        if self.mode == "documents" and append:
            raise ValueError(f"`{min(append)}` is for `mode: append`")
        if self.mode == "append" and "truncate" in self.model_fields_set:
            raise ValueError("`truncate` is for `mode: documents`")
        if self.mode == "documents" and "{operation}" in self.index:
            raise ValueError("with `mode: documents`, all operations of a row need the same index")
        return self
