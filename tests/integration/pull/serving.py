"""The HTTP endpoints with consumers, in threads of the test, and a sink that fills their store."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import uvicorn

from tailrace.config import Config
from tailrace.observe.endpoints import settings
from tailrace.observe.kept import SlotFigures
from tailrace.position import ORIGIN
from tailrace.run.endpoints import Endpoints
from tailrace.run.overview import Overview
from tailrace.run.pull_endpoints import clerks_of
from tailrace.run.services import Services
from tailrace.sinks.contract import Lane
from tailrace.sinks.pull.settings import PullSink
from tailrace.sinks.pull.sink import Pull
from tests.unit.sinks.pull.stores import batch_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.sinks.contract import Receipt
    from tests.unit.sinks.pull.stores import Change

NAME = "orders"
TOKEN = "operator-0123456789"
CONSUMER = "consumer-0123456789"


def config_of(data: Path, **keys: Any) -> Config:
    sink = {"type": "pull", "tokens": {"worker": CONSUMER}, **keys}
    return Config.model_validate(
        {
            "data": str(data),
            "http": {"token": TOKEN},
            "pipelines": {
                NAME: {"encoding": "json", "sink": sink},
                "other": {"sink": {"type": "nats"}},
            },
        }
    )


class Filling:
    """The sink of the pipeline, which numbers its messages."""

    def __init__(self, settings: Config) -> None:
        sink = settings.pipelines[NAME].sink
        assert isinstance(sink, PullSink)
        self._sink = Pull(sink, Lane(pipeline=NAME, folder=settings.data / "sinks" / NAME))
        self._sink.open(ORIGIN)
        self._count = 0

    def add(self, *changes: Change) -> Receipt:
        batch = batch_of(changes, self._count + 1)
        self._count += len(changes)
        assert self._sink.inspect(batch) == {}
        self._sink.write(batch)
        return self._sink.flush()

    def close(self) -> None:
        self._sink.close()


@contextmanager
def serving(settings_of: Config) -> Iterator[str]:
    """The endpoints in a thread; their URL."""
    clerks, services = clerks_of(settings_of), Services()
    for name, clerk in clerks.items():
        services.add(f"pull {name}", clerk.run)
    services.start()
    overview = Overview(settings_of, SlotFigures)
    app = Endpoints(settings_of, overview, None, token=TOKEN, clerks=clerks).application()
    server = uvicorn.Server(settings(app))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
            services.stop(5)
