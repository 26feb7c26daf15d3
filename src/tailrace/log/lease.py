"""The lease: one appender at a time, fenced by epoch.

An appender acquires an exclusive lock and durably raises the epoch in the lease file. Every append
reads that file first, so an appender that was paused while another one took over (on shared
storage, where locks can be lost) stops instead of writing. Entries carry their epoch. Epochs never
decrease: without a lease file, the next epoch follows that of the durable mark. Capture stays in
the term of the last epoch (`tailrace.log.term`); only a takeover begins another.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from typing import TYPE_CHECKING, Self

from crc32c import crc32c

from tailrace.errors import CorruptError, LogFencedError
from tailrace.log.format import mark as marks
from tailrace.log.term import first_epoch, term_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.log.store import Store

NAME = "lease"
_LOCK = "lock"
_FOLLOWING = "following"
_RECORD = struct.Struct("<4sHHQI")
_MAGIC = b"TRle"
_VERSION = 1


class Lease:
    """The right to append, from `acquire` to `release`."""

    def __init__(self, store: Store, epoch: int, lock: contextlib.ExitStack) -> None:
        self.epoch = epoch
        self._store = store
        self._lock = lock

    @classmethod
    def acquire(cls, store: Store, term: int | None = None) -> Self:
        """Acquire the lease, in the present term or in a later one.

        Raises LogFencedError with the present holder, or if the term has passed.
        """
        with contextlib.ExitStack() as lock:
            lock.enter_context(locked(store))
            if follows(store):
                raise LogFencedError(
                    "this log is a copy that follows another machine",
                    hint="To capture here, take over: tailrace takeover",
                )
            return cls(store, raise_epoch(store, term), lock.pop_all())
        raise AssertionError("unreachable")

    def check(self) -> None:
        """Raise LogFencedError if another appender has taken over the lease."""
        current = _epoch(self._store)
        if current != self.epoch:
            raise LogFencedError(
                f"epoch {self.epoch} has ended: epoch {current} appends now "
                f"({_holder(self._store)})"
            )

    def release(self) -> None:
        """Release the lock, so that another appender can acquire the lease."""
        self._lock.close()


@contextlib.contextmanager
def locked(store: Store) -> Iterator[None]:
    """Hold the lock of the log without a new epoch. Raises LogFencedError with its holder."""
    with contextlib.ExitStack() as lock:
        try:
            lock.enter_context(store.lock(_LOCK))
        except LogFencedError as error:
            raise LogFencedError(f"{error} ({_holder(store)})") from error
        yield


def last_epoch(store: Store) -> int:
    """The highest epoch that this copy of the log has seen; 0 if there is none."""
    mark = marks.peek(store)
    return max(_epoch(store), mark.epoch if mark else 0)


def follows(store: Store) -> bool:
    """Whether this log is a copy of another machine's, which no capture may append to."""
    try:
        store.size(_FOLLOWING)
    except FileNotFoundError:
        return False
    return True


def follow(store: Store) -> None:
    """Note that this log is a copy, until `lead`. The caller locks."""
    store.write_atomic(_FOLLOWING, b"")


def lead(store: Store) -> None:
    """Note that this machine captures. The caller locks."""
    store.remove(_FOLLOWING)


def note_epoch(store: Store, epoch: int) -> None:
    """Remember the epoch of another machine: this one's epochs follow it. The caller locks."""
    if epoch > _epoch(store):
        store.write_atomic(NAME, _record(epoch))


def raise_epoch(store: Store, term: int | None = None) -> int:
    """Write the next epoch durably and return it. The caller holds the lock."""
    last = last_epoch(store)
    present = term_of(last)
    if term is not None and term < present:
        raise LogFencedError(f"term {term} has passed: the log is of term {present}")
    epoch = last + 1 if term is None else max(last + 1, first_epoch(term))
    if term_of(epoch) != (present if term is None else term):
        raise CorruptError(f"the lease file holds the last possible epoch of term {present}")
    store.write_atomic(NAME, _record(epoch))
    return epoch


def _record(epoch: int) -> bytes:
    head = _RECORD.pack(_MAGIC, _VERSION, 0, epoch, 0)[:-4]
    holder = {"pid": os.getpid(), "host": socket.gethostname()}
    return head + crc32c(head).to_bytes(4, "little") + json.dumps(holder).encode()


def _epoch(store: Store) -> int:
    try:
        data = store.read(NAME, 0, _RECORD.size)
    except FileNotFoundError:
        return 0
    if len(data) < _RECORD.size or crc32c(data[:-4]).to_bytes(4, "little") != data[-4:]:
        raise CorruptError(
            "the lease file is unreadable",
            hint=f"Make sure that no capture runs on this log, then remove its file `{NAME}`: "
            "the next epoch follows that of the durable mark.",
        )
    magic, version, _, epoch, _ = _RECORD.unpack(data)
    if (magic, version) != (_MAGIC, _VERSION):
        raise CorruptError(
            f"the lease file has magic {magic!r} and format version {version}; "
            f"this release reads {_MAGIC!r} and {_VERSION}",
            hint="Append with the release that wrote it, or upgrade.",
        )
    return int(epoch)


def _holder(store: Store) -> str:
    try:
        holder = json.loads(store.read(NAME, _RECORD.size, 1024))
        return f"process {holder['pid']} on {holder['host']}"
    except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError):
        return "unknown holder"
