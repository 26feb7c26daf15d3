"""A TCP proxy on loopback that can drop, freeze, mute, slow down and restore connections."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import re


_PACE_S = 0.05


@dataclass(eq=False, slots=True)
class _Pair:
    client: socket.socket
    server: socket.socket
    muted: bool = False


class TcpProxy:
    """Forwards to one target.

    `cut` closes all connections, `cut_after` does so in the middle of the data, `black_hole`
    forwards nothing, `hold` nothing in one direction, `mute` discards answers, `throttle` slows
    down.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._requests, self._answers = threading.Event(), threading.Event()
        self.release()
        self._bytes_per_s: float | None = None
        self._counting = threading.Lock()
        self._left: int | None = None
        """How many bytes to forward before a cut; None: no cut."""
        self._muting: re.Pattern[bytes] | None = None
        self.cuts = 0
        """How often connections were cut in the middle of the data."""
        self.discarded_bytes = 0
        """How much of answers was discarded."""
        self._pairs: list[_Pair] = []
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
            pair = _Pair(client, server)
            self._pairs.append(pair)
            for pump in (self._forward_requests, self._forward_answers):
                threading.Thread(target=pump, args=(pair,), daemon=True).start()

    def _forward_requests(self, pair: _Pair) -> None:
        with contextlib.suppress(OSError):
            while data := pair.client.recv(65536):
                self._requests.wait()
                if self._muting is not None and self._muting.search(data):
                    pair.muted = True
                self.requested(pair.client, data)
                self._send(pair.server, data)
        _close(pair.client, pair.server)

    def _forward_answers(self, pair: _Pair) -> None:
        with contextlib.suppress(OSError):
            while data := pair.server.recv(65536):
                self._answers.wait()
                if pair.muted:
                    self.discarded_bytes += len(data)
                else:
                    self._send(pair.client, self.answer(data))
        _close(pair.client, pair.server)

    def requested(self, client: socket.socket, data: bytes) -> None:
        """Called before something of a client is forwarded. A subclass may watch it."""

    def answer(self, data: bytes) -> bytes:
        """What the client receives of the server's answer. A subclass may change it."""
        return data

    def _send(self, receiver: socket.socket, data: bytes) -> None:
        with self._counting:
            if self._left is not None:
                data = data[: self._left]
                self._left -= len(data)
            cut = self._left == 0
        while data and (rate := self._bytes_per_s) is not None:
            time.sleep(_PACE_S)
            size = max(int(rate * _PACE_S), 1)
            receiver.sendall(data[:size])
            data = data[size:]
        receiver.sendall(data)
        if cut:
            self._left = None
            self.cuts += 1
            self.cut()

    def cut(self) -> None:
        """Close every connection; accept new ones."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            _close(pair.client, pair.server)

    def cut_after(self, count: int) -> None:
        """Close every connection once so many bytes more were forwarded, in both directions."""
        self._left = count

    def black_hole(self) -> None:
        """Forward nothing, on present and new connections, without closing any."""
        self.hold()

    def hold(self, *, requests: bool = True, answers: bool = True) -> None:
        """Keep what is sent in a direction, without closing any connection, until `release`."""
        if requests:
            self._requests.clear()
        if answers:
            self._answers.clear()

    def release(self) -> None:
        """Forward again, first what was kept: it arrives late."""
        self._requests.set()
        self._answers.set()

    def throttle(self, bytes_per_s: float | None) -> None:
        """Forward so much per connection and direction; None: as fast as it comes."""
        self._bytes_per_s = bytes_per_s

    def mute(self, after: re.Pattern[bytes]) -> None:
        """Discard the answers of each connection on which a client sends this, from then on."""
        self._muting = after

    def heal(self) -> None:
        """Forward again. Closes the connections, which have lost bytes."""
        self._muting = self._left = self._bytes_per_s = None
        self.cut()
        self.release()

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
