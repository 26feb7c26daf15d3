"""A TCP proxy on loopback that can drop, freeze and restore connections."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self


class TcpProxy:
    """Forwards to one target. `cut` closes all connections, `black_hole` discards all data."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._flowing = threading.Event()
        self._flowing.set()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                continue
            try:
                server = socket.create_connection(self._target)
            except OSError:
                _close(client)
                continue
            self._pairs.append((client, server))
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._flowing.wait()
                sink.sendall(data)
        _close(source, sink)

    def cut(self) -> None:
        """Close every connection; accept new ones."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            _close(*pair)

    def black_hole(self) -> None:
        """Forward nothing, on present and new connections, without closing any."""
        self._flowing.clear()

    def heal(self) -> None:
        """Forward again. Closes the connections that were black holes: they have lost bytes."""
        self.cut()
        self._flowing.set()

    def close(self) -> None:
        """Stop listening and close every connection."""
        self._closed = True
        _close(self._listener)
        self.heal()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _close(*sockets: socket.socket) -> None:
    for endpoint in sockets:
        with contextlib.suppress(OSError):
            endpoint.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            endpoint.close()
