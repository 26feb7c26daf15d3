"""Benches of databases: PostgreSQL, Redis, the search engines and the store of `pull`."""

from __future__ import annotations

import base64
import json
import re
import uuid
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import redis
from typing_extensions import override

from tailrace.headers import loaded
from tailrace.sinks.contract import Lane
from tailrace.sinks.pull.database import in_folder
from tailrace.sinks.pull.queue import Queue, Rules
from tailrace.testing import HttpRequest, HttpResponse
from tests.contract.benches.bench import SMALL_LIMIT, Bench, Throttle, lower
from tests.integration.search.bench import Gateway

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tailrace.sinks.retry import Retry
    from tailrace.testing import EmbeddedElasticsearch, EmbeddedOpenSearch, EmbeddedRedis
    from tests.contract.benches.bench import Delivered
    from tests.fix_postgres import Database


class PostgresBench(Bench):
    """A table of events. A constraint refuses messages."""

    prefix = "cdc"
    once = fences = True
    acceptance = re.compile(rb"COMMIT\b")
    refused_until_restart = False

    def __init__(self, database: Database) -> None:
        self._database = database
        self.port = database.server.port

    def keys(self, port: int, timeout_s: float) -> dict[str, Any]:
        return {
            "type": "postgres",
            "dsn": f"{self._database.dsn} port={port}",
            # JSON types refuse what is not JSON.
            "payload": "bytea",
            "statement_timeout_s": max(int(timeout_s), 1),
            "connect_timeout_s": max(int(timeout_s), 2),
        }

    def delivered(self) -> list[Delivered]:
        if self._database.query("SELECT to_regclass('wal_events')") == [(None,)]:
            return []
        rows = self._database.query(
            "SELECT destination, id, payload FROM wal_events ORDER BY commit_lsn, commit_idx"
        )
        return [(destination.encode(), name.encode(), body) for destination, name, body in rows]

    def refuse(self) -> None:
        limit = f"ADD CONSTRAINT small CHECK (octet_length(payload) <= {SMALL_LIMIT})"
        self._database.execute(f"ALTER TABLE wal_events {limit}")

    def accept(self) -> None:
        self._database.execute("ALTER TABLE wal_events DROP CONSTRAINT small")


class RedisBench(Bench):
    """Streams of a prefix. A key that holds a string refuses messages."""

    once = fences = True
    acceptance = re.compile(b"EVAL")
    refused_until_restart = False

    def __init__(self, url: str, servers: list[EmbeddedRedis], **keys: Any) -> None:
        self.prefix = self.pipeline = f"r{uuid.uuid4().hex[:8]}"
        self._url = url
        self._servers = servers
        self._keys = keys
        if len(servers) == 1:
            self.port = servers[0].port

    def keys(self, port: int, timeout_s: float) -> dict[str, Any]:
        url = f"redis://127.0.0.1:{port}" if port else self._url
        return {"type": "redis", "url": url, "timeout_s": timeout_s, **self._keys}

    def delivered(self) -> list[Delivered]:
        found: dict[bytes, list[tuple[bytes, dict[bytes, bytes]]]] = {}
        for server in self._servers:
            with redis.Redis(port=server.port) as client:
                for key in client.keys(f"{self.prefix}.*"):
                    if client.type(key) == b"stream":
                        found[key] = client.xrange(key)
        return [
            (stream, fields[b"id"], fields[b"payload"])
            for stream, entries in sorted(found.items())
            for _, fields in entries
        ]

    @override
    def refused_place(self) -> bytes:
        return self.place("refused")

    def refuse(self) -> None:
        self._call(lambda client: client.set(self.refused_place(), "x"))

    def accept(self) -> None:
        self._call(lambda client: client.delete(self.refused_place()))

    def _call(self, call: Callable[[Any], object]) -> None:
        """Call the server that has the refused key."""
        if len(self._servers) == 1:
            with redis.Redis(port=self.port) as client:
                call(client)
        else:
            with redis.RedisCluster(host="127.0.0.1", port=self._servers[0].port) as cluster:
                call(cluster)


class Faulty(Gateway):
    """A gateway that fails some items of bulk requests, or asks to wait."""

    throttle: Throttle | None = None
    after_s = 0
    fails: Callable[[bytes], bool] | None = None
    """Whether an item fails."""

    def instead(self, request: HttpRequest) -> HttpResponse | None:
        if not request.path.startswith("/_bulk"):
            return None
        if self.throttle is not None and self.throttle.applies():
            return HttpResponse(status=429, headers={"retry-after": str(self.after_s)})
        return None

    @override
    def _answered(self, request: HttpRequest) -> HttpResponse:
        if self.fails is None or not request.path.startswith("/_bulk"):
            return super()._answered(request)
        lines = request.body.splitlines(keepends=True)
        items = [b"".join(lines[at : at + 2]) for at in range(0, len(lines), 2)]
        failed = [self.fails(item) for item in items]
        kept = b"".join(item for item, fails in zip(items, failed, strict=True) if not fails)
        stored: list[Any] = []
        if kept:
            answer = super()._answered(replace(request, body=kept))
            stored = json.loads(answer.body)["items"]
        error = {"create": {"status": 503, "error": {"type": "x", "reason": "busy"}}}
        passed = iter(stored)
        results = [error if fails else next(passed) for fails in failed]
        body = json.dumps({"errors": any(failed), "items": results}).encode()
        return HttpResponse(body=body, headers={"content-type": "application/json"})


class SearchBench(Bench):
    """Any bytes need `payload: binary`; an index with one shard has an order. An index whose field
    has another type refuses messages."""

    once = True
    ordered = False
    acceptance = re.compile(b"^POST /_bulk")
    refused_until_restart = False

    def __init__(self, server: EmbeddedOpenSearch | EmbeddedElasticsearch, kind: str) -> None:
        self.prefix = self.pipeline = f"{kind[0]}{uuid.uuid4().hex[:8]}"
        self.port = server.port
        self._server = server
        self._type = kind

    def keys(self, port: int, timeout_s: float) -> dict[str, Any]:
        return {
            "type": self._type,
            "url": f"http://127.0.0.1:{port}",
            "timeout_s": timeout_s,
            "mode": "append",
            "payload": "binary",
            "histories": f"{self.prefix}-histories",
        }

    def delivered(self) -> list[Delivered]:
        return [
            (index.encode(), document["id"].encode(), base64.b64decode(document["payload"]))
            for index in sorted(self._server.call("GET", f"/{self.prefix}.*/_settings"))
            for document in self._server.documents(index).values()
        ]

    @override
    def refused_place(self) -> bytes:
        return self.place("refused")

    def refuse(self) -> None:
        mappings = {"properties": {"payload": {"type": "integer"}}}
        self._server.call("PUT", f"/{self.place('refused').decode()}", {"mappings": mappings})

    def accept(self) -> None:
        self._server.call("DELETE", f"/{self.place('refused').decode()}")

    @contextmanager
    def _through(self, gateway: Faulty) -> Iterator[None]:
        own = self.port
        with gateway:
            self.port = gateway.port
            yield
        self.port = own

    @override
    @contextmanager
    def failing_in_part(self, rng: random.Random) -> Iterator[None]:
        gateway = Faulty(self._server)
        gateway.fails = lambda _: rng.random() < 0.3
        with self._through(gateway):
            yield

    @override
    @contextmanager
    def failing_for_now(self) -> Iterator[None]:
        gateway = Faulty(self._server)
        gateway.fails = lambda item: len(item) > SMALL_LIMIT
        with self._through(gateway):
            yield

    @override
    @contextmanager
    def throttling(self, after_s: int) -> Iterator[Throttle]:
        gateway = Faulty(self._server)
        gateway.throttle, gateway.after_s = Throttle(), after_s
        with self._through(gateway):
            yield gateway.throttle


class PullBench(Bench):
    """A store in a folder."""

    prefix = "cdc"
    once = fences = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: list[Delivered] = []
        self._headers: list[dict[str, str]] = []

    def keys(self, port: int, timeout_s: float) -> dict[str, Any]:
        del port, timeout_s
        return {"type": "pull"}

    @override
    def lane(self, *, retry: Retry, folder: Path | None) -> Lane:
        return Lane(pipeline=self.pipeline, retry=retry, folder=self._folder)

    def delivered(self) -> list[Delivered]:
        """What consumers have received, who acknowledge everything."""
        rules = Rules(max_out=10_000, max_deliveries=0, max_bytes=2**30)
        with Queue(in_folder(self._folder), rules) as queue:
            while found := self._receive(queue):
                self._found += found
        return list(self._found)

    @override
    def headers(self) -> list[dict[str, str]]:
        self.delivered()
        return self._headers

    def _receive(self, queue: Queue) -> list[Delivered]:
        with queue.transaction():
            found = queue.receive(7, token=1, now_ms=0, visibility_ms=1)
            queue.acknowledge([each.delivery for each in found])
        self._headers += [lower(loaded(each.headers).items()) for each in found]
        return [(each.destination.encode(), each.id.encode(), each.payload) for each in found]
