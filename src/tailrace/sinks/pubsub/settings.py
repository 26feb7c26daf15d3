"""Settings of the sink `pubsub`."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - pydantic reads the annotations
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from tailrace.settings import Bytes  # noqa: TC001 - pydantic reads the annotations
from tailrace.sinks.pubsub.destination import PROJECT
from tailrace.sinks.requests.settings import RequestSettings

_REQUEST_BYTES = 10_000_000
"""Pub/Sub takes no larger requests and no larger messages."""


def _project(value: str) -> str:
    if PROJECT.fullmatch(value) is None:
        raise ValueError("must be the id of a project such as my-project-1")
    return value


def _endpoint(value: str) -> str:
    if not value:
        return value
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an http:// or https:// URL")
    if parts.username or parts.password or parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError("must have a host and a port only")
    return value


class PubSubSink(RequestSettings):
    """Google Cloud Pub/Sub."""

    type: Literal["pubsub"] = Field(description="This sink: `pubsub`.")
    project: Annotated[str, AfterValidator(_project)] = Field(description="Id of the project.")
    topic: str = Field(
        min_length=1,
        description=(
            "Topic when the pipeline has no `route`: {schema}, {table}, {operation} and {database} "
            "are replaced with escaped names. A topic of another project is "
            "`projects/PROJECT/topics/NAME`."
        ),
    )
    ordering: bool = Field(
        default=True,
        description=(
            "Publish with the key as the ordering key. A request then has messages of one key."
        ),
    )
    endpoint_url: Annotated[str, AfterValidator(_endpoint)] = Field(
        default="",
        description=(
            "Address of the service, such as https://europe-west1-pubsub.googleapis.com. http:// "
            "is for emulators: without TLS and without credentials."
        ),
    )
    credentials_file: Path | None = Field(
        default=None,
        description="Key file of a service account. Default: Application Default Credentials.",
    )
    tls_ca: Path | None = Field(default=None, description="Certificate authority to trust.")
    batch_rows: int = Field(default=100, ge=1, le=1000, description="Max messages in one request.")
    batch_bytes: Bytes = Field(
        default=2**20,
        ge=1,
        le=_REQUEST_BYTES,
        description="Max bytes of the messages in one request, without their attributes.",
    )
    concurrency: int = Field(
        default=64,
        ge=1,
        le=100,
        description="Max requests at a time in each lane. A key has at most one.",
    )
    max_message_bytes: Bytes = Field(
        default=_REQUEST_BYTES,
        ge=1,
        le=_REQUEST_BYTES,
        description="Larger messages, with their attributes, are not sent.",
    )

    @property
    def template(self) -> str:
        """The topic."""
        return self.topic

    @property
    def encrypted(self) -> bool:
        """Whether connections use TLS, and with it credentials."""
        return not self.endpoint_url.startswith("http:")

    @model_validator(mode="after")
    def _consistent_login(self) -> Self:
        if self.encrypted:
            return self
        for name in ("credentials_file", "tls_ca"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"`{name}` cannot be combined with an http:// endpoint_url, which is "
                    "unencrypted: use https://"
                )
        return self
