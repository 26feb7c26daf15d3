"""A store in memory for tests of the log, with disk failures and power cuts.

It follows the contract of `tailrace.log.store` (one suite tests both) and guarantees nothing more:
after `power_cut`, bytes that were never synced are lost, kept in part or garbled, an overwritten
record may be old, new or mixed, and a file that only `append_to` created may be missing.
`cut_power_at` stops the code under test inside any disk operation; `fail` makes the n-th write or
sync fail. All randomness comes from the `random.Random` of the test.

>>> import random
>>> store = MemoryStore()
>>> store.write_atomic("a", b"safe ")
>>> store.append_to("a").write([b"not yet"])
>>> store.power_cut(random.Random(1))
>>> store.read("a", 0, 5)
b'safe '
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Self

from tailrace.errors import LogFencedError, StorageError
from tailrace.log.store import raise_translated
from tailrace.log.watch import Watch

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence

_GARBLE_BYTES = 64


class PowerCutError(Exception):
    """The power failed inside an operation; call `power_cut` before using the store again."""


@dataclass(slots=True)
class _File:
    live: bytearray
    """The content that the process sees."""
    synced: bytes
    """The content that is durable."""
    named: bool
    """Whether the folder's entry is durable."""
    broken: bool = False
    """Whether a sync has failed."""
    overwritten: int = 0
    """The number of first bytes replaced since the last sync."""

    def sync(self) -> None:
        self.synced, self.overwritten = bytes(self.live), 0


@dataclass(slots=True)
class _Fault:
    action: Literal["write", "sync"]
    at: int
    code: int


@dataclass(slots=True)
class _PowerCut:
    """Counts operations down to the one in which the power fails."""

    left: int
    rng: random.Random

    def due(self) -> bool:
        self.left -= 1
        return self.left == 0


@dataclass(slots=True)
class MemoryStore:
    """A `Store` in memory."""

    _files: dict[str, _File] = field(default_factory=dict)
    _locks: set[str] = field(default_factory=set)
    _faults: list[_Fault] = field(default_factory=list)
    _cut: _PowerCut | None = None
    _generation: int = 0

    @classmethod
    def holding(cls, files: dict[str, bytes]) -> Self:
        """A store with these files, durable."""
        return cls(
            {
                name: _File(live=bytearray(data), synced=data, named=True)
                for name, data in files.items()
            }
        )

    def __repr__(self) -> str:
        return "memory"

    def files(self) -> dict[str, bytes]:
        """The present content of every file, as the process sees it."""
        return {name: bytes(file.live) for name, file in sorted(self._files.items())}

    def fail(self, action: Literal["write", "sync"], *, at: int = 1, code: int) -> None:
        """Make the `at`-th write or sync from now on fail with this `errno`."""
        self._faults.append(_Fault(action, at, code))

    def cut_power_at(self, operation: int, rng: random.Random) -> None:
        """Raise PowerCutError inside the n-th operation from now on; it may take effect or not."""
        self._cut = _PowerCut(operation, rng)

    def power_cut(self, rng: random.Random) -> None:
        """Lose what was not durable. Closes all files and releases all locks."""
        self._generation += 1
        self._cut = None
        self._faults.clear()
        self._locks.clear()
        for name, file in list(self._files.items()):
            if not file.named and rng.random() < 0.5:
                del self._files[name]
                continue
            survived = _survived(file, rng)
            self._files[name] = _File(live=bytearray(survived), synced=survived, named=file.named)

    def names(self) -> list[str]:
        """All files, sorted."""
        return sorted(self._files)

    def size(self, name: str) -> int:
        """Bytes in the file."""
        return len(self._file(name).live)

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`."""
        return bytes(self._file(name).live[offset : offset + length])

    def append_to(self, name: str) -> MemoryFile:
        """Open for appending."""
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = _File(live=bytearray(), synced=b"", named=False)
        return MemoryFile(self, name, file)

    def write_atomic(self, name: str, data: bytes) -> None:
        """Leave the old file or the new one."""
        took_effect = self._operation()
        self._fault("write", name)
        self._fault("sync", name)
        if took_effect:
            self._files[name] = _File(live=bytearray(data), synced=bytes(data), named=True)
        self._end_operation()

    def overwrite(self, name: str, data: bytes) -> None:
        """Change the first bytes, without syncing them."""
        file = self._file(name)
        took_effect = self._operation()
        self._fault("write", name)
        if took_effect:
            file.live[: len(data)] = data
            file.overwritten = max(file.overwritten, len(data))
        self._end_operation()

    def watch(self, name: str) -> Watch:  # noqa: ARG002 - of the contract
        """A watch that polls."""
        return Watch()

    def truncate(self, name: str, size: int) -> None:
        """Cut, durably."""
        file = self._file(name)
        took_effect = self._operation()
        self._fault("sync", name)
        if took_effect:
            del file.live[size:]
            file.sync()
        self._end_operation()

    def rewrite(self, name: str, size: int) -> None:
        """Replace the file by a copy."""
        self.write_atomic(name, bytes(self._file(name).live[:size]))

    def remove(self, name: str) -> None:
        """Delete, durably."""
        if self._operation():
            self._files.pop(name, None)
        self._end_operation()

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Lock within this store, until a power cut."""
        if name in self._locks:
            raise LogFencedError("another process is appending to memory")
        self._locks.add(name)
        generation = self._generation
        try:
            yield
        finally:
            if generation == self._generation:
                self._locks.discard(name)

    def _file(self, name: str) -> _File:
        try:
            return self._files[name]
        except KeyError:
            raise FileNotFoundError(name) from None

    def _operation(self) -> bool:
        """Whether an operation takes effect: always, unless the power fails during it."""
        cut = self._cut
        if cut is None or not cut.due():
            return True
        return cut.rng.random() < 0.5

    def _end_operation(self) -> None:
        if self._cut is not None and self._cut.left <= 0:
            raise PowerCutError

    def _fault(self, action: Literal["write", "sync"], name: str) -> None:
        due = None
        for fault in self._faults:
            if fault.action == action:
                fault.at -= 1
                due = fault if fault.at == 0 else due
        if due is not None:
            self._faults.remove(due)
            raise_translated(OSError(due.code, os.strerror(due.code)), f"cannot {action} {name}")


class MemoryFile:
    """A file of a `MemoryStore`, open for appending."""

    def __init__(self, store: MemoryStore, name: str, file: _File) -> None:
        self._store = store
        self._name = name
        self._file = file
        self._generation = store._generation
        self._open = True
        self.size = len(file.live)

    def write(self, buffers: Sequence[bytes]) -> None:
        """Append; a failed write leaves a part of the data."""
        self._check()
        data = b"".join(buffers)
        store = self._store
        cut = store._cut
        if not store._operation():
            assert cut is not None
            data = data[: cut.rng.randrange(len(data) + 1)]
        try:
            store._fault("write", self._name)
        except Exception:
            self._file.live += data[: len(data) // 2]
            raise
        self._file.live += data
        self.size = len(self._file.live)
        store._end_operation()

    def sync(self) -> None:
        """Make everything written durable."""
        self._check()
        took_effect = self._store._operation()
        try:
            self._store._fault("sync", self._name)
        except Exception:
            self._file.broken = True
            raise
        if took_effect:
            self._file.sync()
        self._store._end_operation()

    def close(self) -> None:
        """Close the file."""
        self._open = False

    def _check(self) -> None:
        if not self._open or self._generation != self._store._generation:
            raise StorageError(f"{self._name} is closed")
        if self._file.broken:
            raise StorageError(f"{self._name} failed a sync and may not be used again")


def _survived(file: _File, rng: random.Random) -> bytes:
    """The content of a file on disk after a power cut."""
    data = bytearray(file.synced)
    if file.overwritten:
        written = rng.choice((0, file.overwritten, rng.randrange(file.overwritten + 1)))
        data[:written] = file.live[:written]
    tail = bytearray(file.live[len(file.synced) :])
    if tail:
        tail = tail[: rng.choice((0, len(tail), rng.randrange(len(tail) + 1)))]
    if tail and rng.random() < 0.5:
        # The length can reach the disk before the content: then it reads as zeros or old data.
        at = rng.randrange(len(tail))
        count = min(1 + rng.randrange(_GARBLE_BYTES), len(tail) - at)
        tail[at : at + count] = rng.choice((bytes(count), rng.randbytes(count)))
    return bytes(data + tail)
