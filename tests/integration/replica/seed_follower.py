"""A follower that was written from the text of Chronik's design alone.

It imports nothing of Tailrace: what it understands is what the text says, with big-endian integers
and a length of 16 bits before each string.
"""

from __future__ import annotations

import socket
import struct
import threading
import zlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Record:
    """What one WAL frame holds."""

    topic: str
    partition: int
    base_offset: int
    record_count: int
    timestamp_ms: int
    data: bytes


class SeedFollower:
    """Accepts a leader, keeps its records, and answers its heartbeats."""

    def __init__(self, position: int = 0, *, port: int = 0, deaf: bool = False) -> None:
        self.records: list[Record] = []
        self.heartbeats: list[int] = []
        self.handshakes: list[tuple[int, int, int]] = []
        self.position = position
        self.deaf = deaf
        """Whether it answers no heartbeats."""
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self._connections: list[socket.socket] = []
        self.errors: list[Exception] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def close(self) -> None:
        self._listener.close()
        self.drop()

    def drop(self) -> None:
        """Close all connections."""
        for each in self._connections:
            each.close()
        self._connections.clear()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            self._handshake(connection)
            while True:
                self._frame(connection)
        except (EOFError, OSError):
            pass
        except Exception as error:
            self.errors.append(error)
        connection.close()

    def _handshake(self, connection: socket.socket) -> None:
        version, node, mode = struct.unpack(">HQB", read(connection, 11))
        self.handshakes.append((version, node, mode))
        if version == 1:
            connection.sendall(struct.pack(">BQH", 0, self.position, 0))
            return
        text = b"unknown protocol version"
        connection.sendall(struct.pack(">BQH", 1, 0, len(text)) + text)
        raise EOFError

    def _frame(self, connection: socket.socket) -> None:
        (magic,) = struct.unpack(">H", read(connection, 2))
        if magic == 0x4842:
            (milliseconds,) = struct.unpack(">q", read(connection, 8))
            self.heartbeats.append(milliseconds)
            if not self.deaf:
                connection.sendall(struct.pack(">q", milliseconds))
            return
        assert magic == 0x5741, hex(magic)
        version, total = struct.unpack(">HI", read(connection, 6))
        assert version == 1
        rest = read(connection, total)
        (topic_len,) = struct.unpack_from(">H", rest)
        topic = rest[2 : 2 + topic_len].decode()
        partition, offset, count, milliseconds, checksum = struct.unpack_from(
            ">iqIqI", rest, 2 + topic_len
        )
        data = rest[30 + topic_len :]
        assert zlib.crc32(data) == checksum
        self.records.append(Record(topic, partition, offset, count, milliseconds, data))


def read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data
