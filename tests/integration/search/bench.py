"""Rows for the sinks of OpenSearch and Elasticsearch, and a gateway before a server."""

from __future__ import annotations

import http.client
import json
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tailrace.message import MESSAGES
from tailrace.position import ORIGIN, Lsn, Position
from tailrace.sinks.contract import Lane
from tailrace.sinks.registry import SINKS
from tailrace.sinks.retry import Retry
from tailrace.testing import (
    EmbeddedElasticsearch,
    EmbeddedOpenSearch,
    HttpReceiver,
    HttpRequest,
    HttpResponse,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.sinks.contract import Receipt, Sink

Server = EmbeddedElasticsearch | EmbeddedOpenSearch
SOON = Retry(first_s=0.01, max_s=0.1)
FIRST_LSN = 0x16B3748


def position(number: int) -> Position:
    """Each message is a transaction."""
    return Position(Lsn(FIRST_LSN + 56 * number), 0)


@dataclass(frozen=True, kw_only=True)
class Change:
    """One message. Without a document it deletes."""

    number: int
    key: str | None
    doc: Any = None
    former: str | None = None
    place: Position | None = None
    """Its position; otherwise the number decides."""
    name: str | None = None
    """Its id; otherwise its position decides."""

    @property
    def at(self) -> Position:
        return self.place or position(self.number)


def batch(index: str, *changes: Change, destination: str = "") -> pa.RecordBatch:
    """Messages of shape `row` as the template of mode `documents` addresses them."""
    made = [
        {
            "destination": (
                destination or ("" if change.doc is not None else "DEL ") + index
            ).encode(),
            "id": (change.name or change.at.event_id).encode(),
            "key": None if change.key is None else change.key.encode(),
            "payload": change.doc.encode()
            if isinstance(change.doc, str)
            else json.dumps(change.doc or {}, separators=(",", ":")).encode(),
            "lsn": int(change.at.lsn),
            "ordinal": change.at.ordinal,
            "committed_at": 1_765_540_834_338_547,
            "scope": 1,
            "former": None if change.former is None else change.former.encode(),
        }
        for change in changes
    ]
    return pa.RecordBatch.from_pylist(made, schema=MESSAGES)


@dataclass
class Bench:
    """Sinks of one kind for one server. `url` may be that of a gateway."""

    server: Server
    url: str = ""
    index: str = field(default_factory=lambda: f"t{uuid.uuid4().hex[:8]}")

    @property
    def kind(self) -> str:
        return "opensearch" if isinstance(self.server, EmbeddedOpenSearch) else "elasticsearch"

    def settings(self, **keys: Any) -> Any:
        given = {"type": self.kind, "url": self.url or self.server.url, "timeout_s": 60, **keys}
        return SINKS.find(self.kind).settings.model_validate(given)

    def make(self, lane: Lane | None = None, **keys: Any) -> Sink:
        lane = lane or Lane(pipeline=self.index, retry=SOON)
        return SINKS.find(self.kind).open(self.settings(**keys), lane)

    @contextmanager
    def opened(self, lane: Lane | None = None, **keys: Any) -> Iterator[Sink]:
        sink = self.make(lane, **keys)
        sink.open(ORIGIN)
        try:
            yield sink
        finally:
            sink.close()

    def deliver(self, *changes: Change, lane: Lane | None = None, **keys: Any) -> Receipt:
        """Deliver changes through a new sink."""
        with self.opened(lane, **keys) as sink:
            messages = batch(self.index, *changes)
            assert sink.inspect(messages) == {}
            sink.write(messages)
            return sink.flush()

    @property
    def documents(self) -> dict[str, Any]:
        return self.server.documents(self.index)


class Gateway(HttpReceiver):
    """Forwards requests to a server. A subclass may answer instead, or change the answer."""

    def __init__(self, server: Server, **options: Any) -> None:
        super().__init__(self._answered, **options)
        self.server = server

    def instead(self, request: HttpRequest) -> HttpResponse | None:
        """The answer to a request that is not forwarded."""
        del request
        return None

    def changed(self, request: HttpRequest, body: bytes) -> bytes:
        """The body of the server's answer, as the client gets it."""
        del request
        return body

    def _answered(self, request: HttpRequest) -> HttpResponse:
        found = self.instead(request)
        if found is not None:
            return found
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        try:
            kind = {"content-type": request.headers.get("content-type", "application/json")}
            connection.request(request.method, request.path, request.body or None, kind)
            answer = connection.getresponse()
            body = self.changed(request, answer.read())
        finally:
            connection.close()
        kind = {"content-type": "application/json"}
        return HttpResponse(status=answer.status, body=body, headers=kind)
