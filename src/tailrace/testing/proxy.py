"""A TCP proxy on loopback that can cut, freeze and heal the line."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self


class TcpProxy:
    """Forwards to one target. `cut` resets all lines, `black_hole` swallows without a word."""

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
        """End every line at once; new ones are accepted."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            _close(*pair)

    def black_hole(self) -> None:
        """Nothing passes any more and nobody is told, on old lines and new ones."""
        self._flowing.clear()

    def heal(self) -> None:
        """Let everything flow again. Lines that were black holes end: their bytes are late."""
        self.cut()
        self._flowing.set()

    def close(self) -> None:
        """Stop listening and end every line."""
        self._closed = True
        _close(self._listener)
        self.heal()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _close(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            each.close()
