"""A console on a socket, in a thread of the test."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import uvicorn

from tailrace.observe.endpoints import settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.unit.console.house import House


@contextmanager
def serving(house: House, *, certificate: Path | None = None, port: int = 0) -> Iterator[str]:
    """The console; its URL. With a certificate, a PEM file with its key, over TLS.
    With a port, there."""
    given = settings(house.application, certificate=certificate, key=certificate)
    server = uvicorn.Server(given)
    scheme = "https" if certificate else "http"
    with socket.create_server(("127.0.0.1", port)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            house.stopping = server.should_exit = True
            thread.join()
