"""Topics of Pub/Sub: requests that fail or are refused, and connections that break."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from tailrace.testing.proxy import TcpProxy
from tests.faults.destination import Destination
from tests.pubsub import PROJECT, PubSubServer, Topics

if TYPE_CHECKING:
    from pathlib import Path

    from tests.faults.destination import Change

_CONCURRENCY, _ROWS = 16, 20
_TRANSIENT = (
    {"code": 14, "message": "UNAVAILABLE it is", "share": 0.04},
    {"code": 10, "message": "ABORTED it is", "share": 0.02},
    {"code": 8, "message": "RESOURCE_EXHAUSTED it is", "share": 0.02, "retry_delay_ms": 50},
)
_REFUSED = {"code": 3, "message": "INVALID_ARGUMENT it is", "contains": "xxxx"}


class PubSubTopics(Destination):
    """A topic per pipeline. 8 % of requests fail for now, and those with certain changes for good,
    with everything else that is in them."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed)
        self._server = PubSubServer(seed=seed)
        self._received: dict[str, list[Change]] = defaultdict(list)
        self._cuts = 0

    def sink(self, name: str, *, healed: bool = False) -> dict[str, Any]:
        if not healed:
            self._topics.create(name)
        return {
            "type": "pubsub",
            "project": PROJECT,
            "topic": name,
            "endpoint_url": f"http://127.0.0.1:{self._proxy.port}",
            "batch_rows": _ROWS,
            "concurrency": _CONCURRENCY,
            # Requests of many keys keep each key in order, too.
            "ordering": name != "lanes",
        }

    def accepted(self, name: str) -> list[Change]:
        for message in self._topics.received(name):
            row = json.loads(message.data)["after"]
            self._received[name].append((row["id"], row["n"]))
        return list(self._received[name])

    def allowed_repeats(self, faults: int, lanes: int) -> int:
        """Each process that dies, and each lost connection, has requests in flight."""
        return (faults + self._cuts) * lanes * _CONCURRENCY * _ROWS

    def prepare(self) -> None:
        self._fail(_REFUSED, *_TRANSIENT)

    def disturb(self) -> None:
        self._cuts += 1
        self._proxy.cut()

    def heal(self) -> None:
        self._fail(*_TRANSIENT)

    def _fail(self, *faults: dict[str, Any]) -> None:
        self._server.fail(*({"method": "Publish", **each} for each in faults))

    def __enter__(self) -> Destination:
        self._server.start()
        self._topics = Topics(self._server)
        self._proxy = TcpProxy("127.0.0.1", self._server.port)
        return self

    def __exit__(self, *_: object) -> None:
        self._proxy.close()
        self._topics.close()
        self._server.__exit__()
