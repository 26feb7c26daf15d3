"""What `tailrace check` reports about a cluster. Changes nothing."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from tailrace.errors import SinkRefusedError
from tailrace.finding import Finding, Severity, warning
from tailrace.sinks.search.client import Client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.sinks.search.settings import SearchSettings

_OPENSEARCH = "OpenSearch"


def probe(settings: SearchSettings, *, name: str) -> None:
    """Fail unless the cluster answers and takes the login."""
    _version(settings, name=name)


def inspect(settings: SearchSettings, *, title: str) -> Iterator[Finding]:
    """Which product and version answers, and whether it is the one that the sink is named after."""
    version = _version(settings, name="check")
    found = _OPENSEARCH if version.get("distribution") == "opensearch" else "Elasticsearch"
    if found != title:
        yield warning(
            f"the server is {found}, the sink is for {title}",
            f"Set `type: {found.lower()}`.",
        )
    answers = f"{found} {version.get('number', '')} answers"
    yield Finding(severity=Severity.OK, finding=answers)


def _version(settings: SearchSettings, *, name: str) -> dict[str, Any]:
    with contextlib.closing(Client(settings)) as client:
        answer = client.ask("GET", "/")
        if answer.status != 200:
            raise client.unexpected(answer, "a request for its version")
    found = answer.json()
    if not isinstance(found, dict) or "version" not in found:
        raise SinkRefusedError(
            f"pipeline {name}: the address answers, but not as a cluster does",
            hint="Check `url` of the sink, and its path.",
        )
    return dict(found["version"])
