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

    from tests.unit.console.house import House


@contextmanager
def serving(house: House) -> Iterator[str]:
    """The console; its URL."""
    server = uvicorn.Server(settings(house.application))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            house.stopping = server.should_exit = True
            thread.join()
