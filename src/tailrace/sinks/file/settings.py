"""Settings of the sink `file`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator

from tailrace.settings import Bytes, is_loopback
from tailrace.sinks.file.destination import is_folder
from tailrace.sinks.sink_type import SinkSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\x00-\x20\x7f]+|/[^\x00-\x1f\x7f]*")
_HTTP = re.compile(r"\bhttp://[^;\s]*")
_LOCAL = ("file", "local", "")
_UNENCRYPTED = ("ftp", "http", "webdav", "dav")
_NOT_SECRET = {"anon", "endpoint_url", "use_ssl", "client_kwargs", "config_kwargs", "project"}

Plain = SecretStr | bool | int | float | None
Options = dict[str, Plain | dict[str, Plain | dict[str, Plain]]]


def _url(value: str) -> str:
    if _URL.fullmatch(value) is None:
        raise ValueError("must be an absolute path, or a URL such as s3://bucket/folder")
    if "::" in value:
        raise ValueError("must not be a chain of URLs (`::`)")
    parts = urlsplit(value)
    if "@" in parts.netloc and parts.scheme not in ("abfs", "abfss"):
        raise ValueError("must not contain a user or a password: set them in `options`")
    if parts.scheme and (parts.query or parts.fragment):
        raise ValueError("must not contain a query or a fragment")
    if parts.scheme in _LOCAL and (parts.netloc or not parts.path.startswith("/")):
        raise ValueError("must be an absolute path: file:///folder")
    return value


def _path(value: str) -> str:
    if not is_folder(re.sub(r"\{[^{}]*\}", "x", value).encode()):
        raise ValueError(
            "must be a relative path such as {schema}/{table}, without `..` and without parts "
            "that begin with `.` or `_`"
        )
    return value


class FileSink(SinkSettings):
    """Files in a local folder or an object store."""

    type: Literal["file"] = Field(description="This sink: `file`.")
    url: Annotated[str, AfterValidator(_url)] = Field(
        description=(
            "Folder: an absolute path, or a URL of fsspec such as s3://bucket/folder, "
            "gs://bucket/folder or abfs://container@account/folder."
        )
    )
    path: Annotated[str, AfterValidator(_path)] = Field(
        default="{schema}/{table}",
        description=(
            "Folder below `url` when the pipeline has no `route`: {schema}, {table}, {operation} "
            "and {database} are replaced with escaped names."
        ),
    )
    format: Literal["parquet", "jsonl"] = Field(
        default="parquet",
        description="Parquet, or JSON Lines: one payload per line, which must be JSON.",
    )
    compression: Literal["zstd", "gzip", "snappy", "none"] = Field(
        default="zstd",
        description="Compression: zstd, snappy or none in Parquet; zstd, gzip or none of jsonl.",
    )
    partition: Literal["none", "date"] = Field(
        default="none",
        description="`date`: a folder date=YYYY-MM-DD per day of the commit in UTC.",
    )
    roll_rows: int = Field(
        default=1_000_000, ge=1, description="Files are completed when one has so many messages."
    )
    roll_bytes: Bytes = Field(
        default=128 * 2**20,
        ge=1,
        le=4 * 2**30,
        description="Files are completed when one has so many bytes of payloads, uncompressed.",
    )
    roll_s: float = Field(
        default=60.0,
        ge=0,
        description=(
            "Files are completed when their first message has waited for so many seconds. They "
            "also are at the end of every micro-batch: see `max_open_s` of the pipeline."
        ),
    )
    buffer_bytes: Bytes = Field(
        default=64 * 2**20,
        ge=2**16,
        le=2**30,
        description="Max bytes of messages in memory in each lane. More are in temporary files.",
    )
    max_message_bytes: Bytes = Field(
        default=5 * 2**20, ge=1, le=2**30, description="Larger messages are not written."
    )
    readable_by: Literal["owner", "group", "all"] = Field(
        default="owner", description="Who may read files in a local folder."
    )
    options: Options = Field(
        default={},
        repr=False,
        description=(
            "Options of the fsspec file system: credentials, `endpoint_url`. Without credentials "
            "its library finds those of the machine."
        ),
    )

    @property
    def template(self) -> str:
        """The folder."""
        return self.path

    @property
    def local(self) -> bool:
        """Whether the files are in a folder of this machine."""
        return urlsplit(self.url).scheme in _LOCAL

    @property
    def folder(self) -> Path:
        """The folder of a local URL."""
        return Path(unquote(urlsplit(self.url).path) if "://" in self.url else self.url)

    @property
    def plain_options(self) -> dict[str, Any]:
        """The options as fsspec takes them, with their secrets."""
        shown: dict[str, Any] = _revealed(self.options)
        return shown

    @property
    def suffix(self) -> str:
        """How the names of files end."""
        if self.format == "parquet":
            return ".parquet"
        return ".jsonl" + {"zstd": ".zst", "gzip": ".gz"}.get(self.compression, "")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        other = {"parquet": "gzip", "jsonl": "snappy"}[self.format]
        if self.compression == other:
            raise ValueError(f"`compression: {other}` cannot be used with `format: {self.format}`")
        if self.local and self.options:
            raise ValueError("a local folder has no `options`")
        return self

    @model_validator(mode="after")
    def _credentials_are_protected(self) -> Self:
        if self.options.keys() <= _NOT_SECRET:
            return self
        url, options = urlsplit(self.url), self.plain_options
        hosts = [urlsplit(each).hostname for each in _unencrypted(options)]
        if url.scheme in _UNENCRYPTED:
            hosts.append(url.hostname)
        if options.get("use_ssl") in (False, "false") and not hosts:
            hosts.append("")
        if not all(is_loopback(host or "") for host in hosts):
            raise ValueError(
                "`options` with credentials would be used over an unencrypted connection: use an "
                "https:// endpoint. http:// is allowed on loopback only"
            )
        return self


def _revealed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _revealed(each) for key, each in value.items()}
    return value.get_secret_value() if isinstance(value, SecretStr) else value


def _unencrypted(value: Any) -> Iterator[str]:
    """All http:// URLs in a nested value, also within a connection string of Azure."""
    if isinstance(value, dict):
        for each in value.values():
            yield from _unencrypted(each)
    elif isinstance(value, str):
        yield from _HTTP.findall(value)
