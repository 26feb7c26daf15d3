"""Settings of traces."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr

from tailrace.settings import Section


def _endpoint(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
        raise ValueError("must be an address such as http://127.0.0.1:4318, without user and query")
    return url.rstrip("/")


class Telemetry(Section):
    """Traces of micro-batches, sent to an OpenTelemetry collector (extra `otel`)."""

    endpoint: Annotated[str, AfterValidator(_endpoint)] = Field(
        description="Address of the collector, OTLP over HTTP. Spans go to ENDPOINT/v1/traces.",
    )
    headers: dict[str, SecretStr] = Field(
        default={}, description="Headers of the requests, such as authorization."
    )
    sample: float = Field(
        default=1.0, ge=0, le=1, description="Share of micro-batches that get a span."
    )
    timeout_s: float = Field(
        default=10.0, gt=0, description="Seconds after which spans are given up and counted."
    )
    service: str = Field(default="tailrace", min_length=1, description="service.name of the spans.")
