"""A machine's line to PostgreSQL that reads what is acknowledged: to which slot, and by whom."""

from __future__ import annotations

import re
import struct
import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING

from tailrace.log.format import mark as marks
from tailrace.position import Lsn
from tailrace.testing import TcpProxy

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from tailrace.log.store import LocalStore

_START = re.compile(rb'START_REPLICATION SLOT "?([a-z0-9_]+)"?')
_UNTYPED = struct.Struct("!II")
_PROTOCOL_3 = 3 << 16
_LENGTH = struct.Struct("!I")
_STATUS = struct.Struct("!cQQ")


class _Requests:
    """What a client of PostgreSQL sends over one connection, without TLS."""

    def __init__(self, acknowledged: Callable[[str, Lsn], None]) -> None:
        self._acknowledged = acknowledged
        self._data = b""
        self._begun = False
        self._slot = ""

    def feed(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= _UNTYPED.size:
            typed = int(self._begun)
            (size,) = _LENGTH.unpack_from(self._data, typed)
            if len(self._data) < size + typed:
                return
            frame, self._data = self._data[: size + typed], self._data[size + typed :]
            if self._begun:
                self._message(frame[:1], frame[5:])
            else:
                # Before it come requests for encryption, which this server has not.
                self._begun = _UNTYPED.unpack_from(frame)[1] >> 16 == _PROTOCOL_3 >> 16

    def _message(self, kind: bytes, body: bytes) -> None:
        if kind == b"Q" and (found := _START.search(body)):
            self._slot = found[1].decode()
        elif kind == b"d" and body[:1] == b"r":
            _, _, flushed = _STATUS.unpack_from(body)
            if flushed:
                self._acknowledged(self._slot, Lsn(flushed))


class PostgresLine(TcpProxy):
    """Between a machine and PostgreSQL."""

    def __init__(self, port: int, acknowledged: Callable[[str, Lsn], None]) -> None:
        self._note = acknowledged
        self._clients: dict[socket.socket, _Requests] = {}
        super().__init__("127.0.0.1", port)

    def requested(self, client: socket.socket, data: bytes) -> None:
        if client not in self._clients:
            self._clients[client] = _Requests(self._note)
        self._clients[client].feed(data)


class Acknowledgements:
    """Judges each acknowledgement before PostgreSQL has it.

    Only one machine acknowledges to the slot of a term, and nothing that fewer than so many copies
    of the log have.
    """

    def __init__(self, stores: dict[str, LocalStore], *, copies: int) -> None:
        self._stores = stores
        self._copies = copies
        self._lock = threading.Lock()
        self.machines: dict[str, set[str]] = defaultdict(set)
        """Of each slot, who acknowledges to it."""
        self.violations: list[str] = []
        self.count = 0

    def note(self, machine: str, slot: str, lsn: Lsn) -> None:
        ends = self._ends()
        with self._lock:
            self.count += 1
            self.machines[slot].add(machine)
            having = [name for name, end in ends.items() if end >= lsn]
            if len(having) < self._copies or machine not in having:
                self.violations.append(f"{machine} acknowledges {lsn} to {slot}: {ends}")

    def _ends(self) -> dict[str, Lsn]:
        found = {name: marks.peek(store) for name, store in self._stores.items()}
        for name, store in self._stores.items():
            # A copy that is being cut or recovered has no mark for a moment.
            deadline = time.monotonic() + 2
            while found[name] is None and store.names() and time.monotonic() < deadline:
                time.sleep(0.01)
                found[name] = marks.peek(store)
        return {name: Lsn(0) if mark is None else mark.end_lsn for name, mark in found.items()}

    def check(self) -> None:
        """Raise for the first that is wrong."""
        assert self.count
        assert not self.violations, f"{len(self.violations)}, first {self.violations[0]}"
        shared = {slot: names for slot, names in self.machines.items() if len(names) > 1}
        assert not shared, shared
