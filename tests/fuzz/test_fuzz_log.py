"""Whatever stands in a log's files, its readers answer with values or with documented errors.

Two layers. The format alone: mutated entries and headers, half of them with a checksum that holds,
so that the code after the checksum meets them too. And whole logs: one file damaged, then recovery,
reading, verification, retention and the lease over it. Damage that the checksums see must never
invent or change a change; under forged checksums only the set of errors is promised.

TAILRACE_FUZZ sets the number of inputs of each format test (a twentieth of it for whole logs),
TAILRACE_SEED repeats a run.
"""

from __future__ import annotations

import os
import random
import struct
import time
from collections import Counter
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import pytest
from crc32c import crc32c

from tailrace.errors import (
    ConfigError,
    CorruptError,
    LogFencedError,
    MalformedError,
    PositionLostError,
)
from tailrace.log import retention
from tailrace.log.changes import read_changes
from tailrace.log.format import index
from tailrace.log.format import mark as marks
from tailrace.log.format.layout import (
    ENTRY_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    Codec,
    decode_entry,
    decode_frame,
    decode_segment_header,
    encode_entry,
    segment_header_bytes,
)
from tailrace.log.format.segment import list_segments, read_header, walk
from tailrace.log.lease import Lease
from tailrace.log.reader import AtLsn, AtTime, Log
from tailrace.log.recovery import recover
from tailrace.log.verify import verify
from tailrace.position import ORIGIN, Lsn
from tailrace.testing import MemoryStore
from tests.chance import examples
from tests.fix_log import TIME, TestLog, all_changes, random_log
from tests.fuzz.mutate import Mutator

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.change import Change

pytestmark = pytest.mark.fuzz

COUNT = int(os.environ.get("TAILRACE_FUZZ") or examples(400))
WHOLE = max(COUNT // 20, 100)
"""Half of them damaged, half forged."""
SEED = int(os.environ.get("TAILRACE_SEED", random.SystemRandom().getrandbits(32)))
DOCUMENTED = (CorruptError, MalformedError, PositionLostError, ConfigError, LogFencedError)
Files = dict[str, bytes]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process writes: a torn mark stays torn."""
    monkeypatch.setattr(marks, "_READ_ATTEMPTS", 2)


def corpus(codec: Codec) -> list[TestLog]:
    return [
        random_log(random.Random(seed), entries=3, segment_bytes=500, codec=codec)
        for seed in range(12)
    ]


def entries_of(made: TestLog, codec: Codec) -> list[bytes]:
    return [b"".join(encode_entry(entry, epoch=3, codec=codec)) for entry in made.entries]


def resealed(data: bytes) -> bytes:
    """An entry whose lengths and checksum fit what is there."""
    if len(data) < ENTRY_HEADER_BYTES:
        return data
    stored = len(data) - ENTRY_HEADER_BYTES
    raw = struct.pack("<I", stored) if data[7] == Codec.NONE else data[16:20]
    head = data[:8] + bytes(4) + struct.pack("<I", stored) + raw + data[20:ENTRY_HEADER_BYTES]
    body = data[ENTRY_HEADER_BYTES:]
    crc = crc32c(body, crc32c(head))
    return head[:8] + struct.pack("<I", crc) + head[12:] + body


def fuzz(
    name: str, inputs: list[bytes], count: int, survives: Callable[[bytes, bool], bool]
) -> None:
    """Half of the inputs as they are, half with checksums made to hold."""
    print(f"TAILRACE_SEED={SEED} TAILRACE_FUZZ={COUNT}")
    started = time.perf_counter()
    passed = 0
    for number, data in enumerate(islice(Mutator(inputs, SEED), count)):
        try:
            passed += survives(data, number % 2 == 1)
        except Exception as error:
            raise AssertionError(f"TAILRACE_SEED={SEED}, input {number}: {data!r}") from error
    rate = count / (time.perf_counter() - started)
    print(f"{name}: {count:_} inputs, {passed:_} read, {rate:_.0f} inputs/s")


def decodes(data: bytes, reseal: bool) -> bool:
    data = resealed(data) if reseal else data
    try:
        frame = decode_frame(data[:ENTRY_HEADER_BYTES])
        data = data[: frame.total_bytes]
        entry = decode_entry(frame, data[:ENTRY_HEADER_BYTES], data[ENTRY_HEADER_BYTES:])
        list(entry.messages())
        list(entry.schema_messages())
    except MalformedError:
        return False
    if frame.codec == Codec.NONE:
        assert b"".join(encode_entry(entry, epoch=entry.epoch)) == data
    return True


@pytest.mark.timeout(60 + COUNT // 1_000)
@pytest.mark.parametrize("codec", list(Codec))
def test_entries(codec: Codec) -> None:
    inputs = [data for made in corpus(codec) for data in entries_of(made, codec)]
    fuzz(f"entries, {codec.name.lower()}", inputs, COUNT, decodes)


@pytest.mark.timeout(60 + COUNT // 1_000)
def test_segment_headers() -> None:
    stores = [corpus(Codec.NONE)[0].store, TestLog(log_id="5f0c2a9e" * 4).store]
    headers = [
        store.read(name.file, 0, read_header(store, name)[1])
        for store in stores
        for name in list_segments(store)
    ]

    def survives(data: bytes, reseal: bool) -> bool:
        if reseal and len(data) >= SEGMENT_HEADER_BYTES:
            text = data[SEGMENT_HEADER_BYTES:]
            head = data[:12] + struct.pack("<II", len(text), 0)
            data = head[:16] + struct.pack("<I", crc32c(text, crc32c(head))) + text
        try:
            header = decode_segment_header(data[: segment_header_bytes(data)])
        except MalformedError:
            return False
        again = header.encode()
        assert decode_segment_header(again) == header
        return True

    fuzz("segment headers", headers, COUNT, survives)


@pytest.mark.timeout(60 + COUNT // 1_000)
def test_marks_indexes_leases_and_pins() -> None:
    files = [made.store.files() for made in corpus(Codec.NONE)]
    small = [
        data for held in files for name, data in held.items() if not name.endswith((".seg", "lock"))
    ]
    small.append(b'{"position": "16/B374D848.3"}')

    def survives(data: bytes, reseal: bool) -> bool:
        if reseal:
            data = data[:-4] + struct.pack("<I", crc32c(data[:-4]))
        # Noise is refused as a mark, as a pin and as a lease.
        return sum(map(documented, small_readers(data))) < 3

    fuzz("marks, indexes, leases, pins", small, COUNT, survives)


def small_readers(data: bytes) -> list[Callable[[], object]]:
    store = MemoryStore.holding({"durable": data, "x.idx": data, "pin-x.json": data})
    return [
        lambda: marks.read(store),
        lambda: marks.peek(store),
        lambda: index.read(store, "x.idx"),
        lambda: retention.pins(store),
        lambda: Lease.acquire(MemoryStore.holding({"lease": data})),
    ]


def documented(call: Callable[[], object]) -> bool:
    """Whether the call raised one of the documented errors; any other goes on."""
    try:
        call()
    except DOCUMENTED:
        return True
    return False


class Damage:
    """One file of a log, damaged in one of several ways."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        logs = [*corpus(Codec.NONE), *corpus(Codec.ZSTD)]
        self._logs = [(made.store.files(), all_changes(made.store)) for made in logs]
        contents = [data for files, _ in self._logs for data in files.values() if data]
        messages = [
            bytes(message)
            for made in logs
            for entry in made.entries
            for message in entry.messages()
        ]
        self._mutator = Mutator(contents, seed)
        self._files = {len(data): Mutator([data], seed) for data in contents}
        self._message = Mutator(messages, seed)

    def plain(self) -> tuple[Files, list[Change]]:
        """A file mutated, emptied, lost or swapped; its checksums as they were."""
        files, changes = self._rng.choice(self._logs)
        name = self._rng.choice(list(files))
        match self._rng.randrange(20):
            case 0:
                return {other: data for other, data in files.items() if other != name}, changes
            case 1:
                return files | {name: b""}, changes
            case 2:
                return files | {name: files[self._rng.choice(list(files))]}, changes
            case _:
                return files | {name: self._mutated(files[name])}, changes

    def _mutated(self, data: bytes) -> bytes:
        return next(self._files.get(len(data), self._mutator)) if data else next(self._mutator)

    def forged(self) -> Files:
        """An entry, a mark or a row changed, and every checksum made to hold."""
        files, _ = self._rng.choice(self._logs)
        if self._rng.random() < 0.1:
            mark = bytearray(files["durable"][:-4])
            Mutator([bytes(mark)], 0).tamper(mark)
            mark[self._rng.randrange(len(mark))] ^= 1 << self._rng.randrange(8)
            data = bytes(mark[:64]).ljust(64, b"\0")
            return files | {"durable": data + struct.pack("<I", crc32c(data))}
        if self._rng.random() < 0.1:
            return files | self._forged_index(files)
        return self._forged_entry(files)

    def _forged_index(self, files: Files) -> Files:
        name = self._rng.choice([name for name in files if name.endswith(".idx")])
        row = bytearray(files[name][:36].ljust(36, b"\0"))
        row[self._rng.randrange(36)] = self._rng.randrange(256)
        forged = bytes(row) + struct.pack("<I", crc32c(bytes(row)))
        return {name: forged + files[name][40:]}

    def _forged_entry(self, files: Files) -> Files:
        store = MemoryStore.holding(files)
        name = self._rng.choice(list_segments(store))
        placed = self._rng.choice(list(walk(store, name, read_header(store, name)[1])))
        data = files[name.file]
        old = data[placed.start : placed.end]
        new = self._changed_messages(old) if self._rng.random() < 0.5 else self._changed_bytes(old)
        forged = files | {name.file: data[: placed.start] + new + data[placed.end :]}
        mark = marks.decode(files["durable"])
        assert mark is not None
        if mark.sequence == name.sequence:
            moved = replace(mark, offset=max(mark.offset + len(new) - len(old), 0))
            forged["durable"] = moved.encode()
        return forged

    def _changed_messages(self, old: bytes) -> bytes:
        """Other messages under a table of offsets that fits them."""
        head = old[:ENTRY_HEADER_BYTES]
        entry = decode_entry(decode_frame(head), head, old[ENTRY_HEADER_BYTES:])
        messages = [bytes(message) for message in entry.messages()]
        at = self._rng.randrange(len(messages) + 1)
        messages[at : at + self._rng.randrange(2)] = [next(self._message) or b"?"]
        ends = [0]
        for message in messages:
            ends.append(ends[-1] + len(message))
        offsets = entry.offsets.__class__((len(ends),), entry.offsets.dtype)
        offsets[:] = ends
        changed = replace(entry, offsets=offsets, body=b"".join(messages))
        return b"".join(encode_entry(changed, epoch=entry.epoch, codec=old[7]))

    def _changed_bytes(self, old: bytes) -> bytes:
        data = bytearray(old)
        for _ in range(1 + self._rng.randrange(3)):
            at = 4 + self._rng.randrange(min(len(data), 200) - 4)
            data[at] = self._rng.randrange(256)
        return resealed(bytes(data))


def everything(files: Files, number: int, raised: Counter[str]) -> list[list[Change]]:
    """Every reader over a log; counts the documented errors, gives what could be read."""
    log = Log(MemoryStore.holding(files))
    no_limits = retention.Limits(keep_hours=0, keep_bytes=0)
    in_turn: list[Callable[[], object]] = [
        lambda: list(read_changes(log, log.end().position)),
        lambda: list(read_changes(log, log.resolve(AtTime(TIME + 20_000_000)))),
        lambda: list(read_changes(log, log.resolve(AtLsn(Lsn(0x1200))))),
        lambda: retention.expired(MemoryStore.holding(files), no_limits, now_micros=TIME),
        lambda: Lease.acquire(MemoryStore.holding(files)),
    ]
    found: list[list[Change]] = []
    calls: list[Callable[[], object]] = [
        lambda: found.append(list(read_changes(log, ORIGIN))),
        lambda: found.append(recovered(files)),
        lambda: verify(MemoryStore.holding(files)),
        in_turn[number % len(in_turn)],
    ]
    for call in calls:
        try:
            call()
        except DOCUMENTED as error:
            raised[error.code] += 1
    return found


def recovered(files: Files) -> list[Change]:
    store = MemoryStore.holding(files)
    return [] if recover(store) is None else all_changes(store)


@pytest.mark.timeout(60 + WHOLE // 20)
def test_whole_logs_with_damage() -> None:
    """What can be read is a part of what was written, without a gap."""
    print(f"TAILRACE_SEED={SEED} TAILRACE_FUZZ={COUNT}")
    started = time.perf_counter()
    raised: Counter[str] = Counter()
    damage = Damage(SEED)
    for number in range(WHOLE // 2):
        files, changes = damage.plain()
        try:
            for found in everything(files, number, raised):
                start = changes.index(found[0]) if found else 0
                assert found == changes[start : start + len(found)]
        except Exception as error:
            raise AssertionError(f"TAILRACE_SEED={SEED}, input {number}: {files!r}") from error
    rate = (WHOLE // 2) / (time.perf_counter() - started)
    print(f"damaged logs: {WHOLE // 2:_} inputs, {rate:_.0f} inputs/s, {dict(raised)}")


@pytest.mark.timeout(60 + WHOLE // 20)
def test_whole_logs_with_forged_checksums() -> None:
    print(f"TAILRACE_SEED={SEED} TAILRACE_FUZZ={COUNT}")
    started = time.perf_counter()
    raised: Counter[str] = Counter()
    damage = Damage(SEED)
    for number in range(WHOLE // 2):
        files = damage.forged()
        try:
            everything(files, number, raised)
        except Exception as error:
            raise AssertionError(f"TAILRACE_SEED={SEED}, input {number}: {files!r}") from error
    rate = (WHOLE // 2) / (time.perf_counter() - started)
    print(f"forged logs: {WHOLE // 2:_} inputs, {rate:_.0f} inputs/s, {dict(raised)}")
