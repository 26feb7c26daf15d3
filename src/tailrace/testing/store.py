"""A log's store in memory, with a disk that can fail and a plug that can be pulled.

It holds to the contract of `tailrace.log.store` (one suite checks both) and to nothing kinder:
after `power_cut`, bytes that were never synced are lost, kept in part or garbled, an overwritten
record may be back to its old self or half new, and a file that only `append_to` made may be gone.
`cut_power_at` stops the code under test inside any operation on the disk; `fail` makes the n-th
write or sync fail. All chance comes from the `random.Random` a test gives.

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

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence

_GARBLE_BYTES = 64


class PowerCutError(Exception):
    """The power went in the middle of an operation; call `power_cut` before going on."""


@dataclass(slots=True)
class _File:
    live: bytearray
    """What the process sees."""
    synced: bytes
    """What the disk is sure to hold."""
    named: bool
    """Whether the folder's entry is durable."""
    broken: bool = False
    """Whether a sync has failed."""
    overwritten: int = 0
    """How many of the first bytes were replaced since the last sync."""

    def sync(self) -> None:
        self.synced, self.overwritten = bytes(self.live), 0


@dataclass(slots=True)
class _Fault:
    action: Literal["write", "sync"]
    at: int
    code: int


@dataclass(slots=True)
class _Plug:
    """Counts operations down to the one the power does not survive."""

    left: int
    rng: random.Random

    def pulled(self) -> bool:
        self.left -= 1
        return self.left == 0


@dataclass(slots=True)
class MemoryStore:
    """A `Store` in memory."""

    _files: dict[str, _File] = field(default_factory=dict)
    _locks: set[str] = field(default_factory=set)
    _faults: list[_Fault] = field(default_factory=list)
    _plug: _Plug | None = None
    _life: int = 0

    @classmethod
    def holding(cls, files: dict[str, bytes]) -> Self:
        """A store with these files in it, durable."""
        return cls(
            {
                name: _File(live=bytearray(data), synced=data, named=True)
                for name, data in files.items()
            }
        )

    def __repr__(self) -> str:
        return "memory"

    def files(self) -> dict[str, bytes]:
        """Every file as a process sees it now."""
        return {name: bytes(file.live) for name, file in sorted(self._files.items())}

    def fail(self, action: Literal["write", "sync"], *, at: int = 1, code: int) -> None:
        """Make the `at`-th write or sync from now fail with this `errno`."""
        self._faults.append(_Fault(action, at, code))

    def cut_power_at(self, operation: int, rng: random.Random) -> None:
        """Raise PowerCutError inside the n-th operation from now; it takes effect or not."""
        self._plug = _Plug(operation, rng)

    def power_cut(self, rng: random.Random) -> None:
        """Lose what was not durable. Open files and locks are gone with their process."""
        self._life += 1
        self._plug = None
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
        return bytes(memoryview(self._file(name).live)[offset : offset + length])

    def append_to(self, name: str) -> MemoryFile:
        """Open for appending."""
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = _File(live=bytearray(), synced=b"", named=False)
        return MemoryFile(self, name, file)

    def write_atomic(self, name: str, data: bytes) -> None:
        """The old file or the new one."""
        took_effect = self._operation()
        self._fault("write", name)
        self._fault("sync", name)
        if took_effect:
            self._files[name] = _File(live=bytearray(data), synced=bytes(data), named=True)
        self._end_operation()

    def overwrite(self, name: str, data: bytes) -> None:
        """Change the first bytes; the disk learns of it at some time."""
        file = self._file(name)
        took_effect = self._operation()
        self._fault("write", name)
        if took_effect:
            file.live[: len(data)] = data
            file.overwritten = max(file.overwritten, len(data))
        self._end_operation()

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
        """A copy takes the file's place."""
        self.write_atomic(name, bytes(self._file(name).live[:size]))

    def remove(self, name: str) -> None:
        """Delete, durably."""
        if self._operation():
            self._files.pop(name, None)
        self._end_operation()

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Exclusive in this store until the power goes."""
        if name in self._locks:
            raise LogFencedError("another process is appending to memory")
        self._locks.add(name)
        life = self._life
        try:
            yield
        finally:
            if life == self._life:
                self._locks.discard(name)

    def _file(self, name: str) -> _File:
        try:
            return self._files[name]
        except KeyError:
            raise FileNotFoundError(name) from None

    def _operation(self) -> bool:
        """Whether an operation takes effect: always, unless the power goes in its middle."""
        plug = self._plug
        if plug is None or not plug.pulled():
            return True
        return plug.rng.random() < 0.5

    def _end_operation(self) -> None:
        if self._plug is not None and self._plug.left <= 0:
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
        self._life = store._life
        self._open = True
        self.size = len(file.live)

    def write(self, buffers: Sequence[bytes]) -> None:
        """Append; a failing write leaves a part behind."""
        self._check()
        data = b"".join(buffers)
        store = self._store
        plug = store._plug
        if not store._operation():
            assert plug is not None
            data = data[: plug.rng.randrange(len(data) + 1)]
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
        """Let go of the file."""
        self._open = False

    def _check(self) -> None:
        if not self._open or self._life != self._store._life:
            raise StorageError(f"{self._name} is closed")
        if self._file.broken:
            raise StorageError(f"{self._name} failed a sync and may not be used again")


def _survived(file: _File, rng: random.Random) -> bytes:
    """What the disk holds of a file after the power went."""
    data = bytearray(file.synced)
    if file.overwritten:
        kept = rng.choice((0, file.overwritten, rng.randrange(file.overwritten + 1)))
        data[:kept] = file.live[:kept]
    tail = bytearray(file.live[len(file.synced) :])
    if tail:
        tail = tail[: rng.choice((0, len(tail), rng.randrange(len(tail) + 1)))]
    if tail and rng.random() < 0.5:
        # Lengths can reach the disk before contents: then there are zeros, or what was there once.
        at = rng.randrange(len(tail))
        count = min(1 + rng.randrange(_GARBLE_BYTES), len(tail) - at)
        tail[at : at + count] = rng.choice((bytes(count), rng.randbytes(count)))
    return bytes(data + tail)
