"""Files of every format version, as written by the release that introduced it.

Today's code must read them to the changes they were made of, and today's encoder must give the
same bytes for the same entries (compressed bodies may differ: zstd's own output is not frozen).
`python -m tests.unit.log.test_golden` writes the files of a new version; those of an old one are
never written again.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from datetime import UTC
from pathlib import Path

import pytest
from crc32c import crc32c

from tailrace.change import ABSENT, UNCHANGED, Binary, Change, Row
from tailrace.log import retention
from tailrace.log.appender import Appender
from tailrace.log.changes import read_changes
from tailrace.log.format.layout import Codec
from tailrace.log.format.segment import list_segments
from tailrace.log.lease import Lease
from tailrace.log.reader import AtTime, Log
from tailrace.log.verify import verify
from tailrace.position import Lsn, Position
from tailrace.testing import MemoryStore
from tests.fix_log import (
    IDENTITY,
    NOW,
    TestLog,
    all_changes,
    delete,
    insert,
    loose,
    message,
    relation,
    transaction,
    truncate,
    update,
)

FOLDER = Path(__file__).parent / "golden" / "v1"
EXPECTED = FOLDER / "changes.txt"
LEASE_EPOCH = 6
# They name the machine and the process that wrote them, or the time.
NOT_FROZEN = ("lease", "lock", "pin-pipeline.json")


def write(codec: Codec) -> dict[str, bytes]:
    """A log with something of everything; the same bytes whenever it is made."""
    made = TestLog(segment_bytes=900, codec=codec)
    made.append(transaction(0), transaction(1, update(relation(1), 10), delete(relation(1), 11)))
    made.append(loose(0x1280), transaction(2, message(0x12A0, b"\x00audit\xff"), origin="node_2"))
    made.progress(0x1380)
    wide = relation(1, version=2)
    rows = [insert(wide, key, "naïve ☃ " * 5) for key in range(12)]
    made.append_pieces(transaction(4, *rows, truncate(wide, relation(2)), origin="node_2"), 5, 9)
    made.append(replace(transaction(5), steps=()))
    made.close()
    made.lease = Lease.acquire(made.store)
    found = Appender.open(made.store, made.lease, made.layout, now=lambda: NOW)
    assert found is not None
    made.appender = found
    made.session.sent.clear()
    made.appender.change_identity(replace(IDENTITY, timeline=2))
    made.append(transaction(6, insert(wide, 7), insert(relation(3), 8)))
    retention.pin(made.store, "pipeline", Position(Lsn(0x1300), 1), now=0)
    made.close()
    files = made.store.files()
    return {name: data for name, data in files.items() if name not in NOT_FROZEN}


def line(change: Change) -> str:
    """A change as a line of text that does not depend on how values print themselves."""
    table = change.relation
    columns = ",".join(f"{c.name}:{c.type_oid}:{c.key}" for c in table.columns) if table else "-"
    fields = (
        change.position,
        change.op.value,
        change.xid,
        change.committed_at.astimezone(UTC).isoformat(),
        f"{table.qualified_name}({columns})" if table else "-",
        row_text(change.before),
        row_text(change.after),
        change.prefix or "-",
        change.content.hex() or "-",
        f"cascade={change.cascade}",
        f"restart={change.restart_identity}",
        change.origin or "-",
    )
    return " | ".join(str(field) for field in fields)


def row_text(row: Row | None) -> str:
    if row is None:
        return "-"
    return ",".join(value_text(value) for value in row)


def value_text(value: object) -> str:
    if value is UNCHANGED or value is ABSENT:
        return f"<{value.name.lower()}>"
    if isinstance(value, Binary):
        return f"binary {value.data.hex()}"
    return "NULL" if value is None else value.hex() if isinstance(value, bytes) else "?"


def golden(codec: Codec) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (FOLDER / codec.name.lower()).iterdir()}


@pytest.mark.parametrize("codec", list(Codec))
def test_old_files_read_as_they_did(codec: Codec) -> None:
    store = MemoryStore.holding(golden(codec))
    expected = EXPECTED.read_text().splitlines()
    assert [line(change) for change in all_changes(store)] == expected
    assert verify(store).findings == []
    assert len(list_segments(store)) > 3
    assert retention.pins(store) == {"pipeline": Position(Lsn(0x1300), 1)}


def test_the_encoder_gives_the_same_bytes() -> None:
    frozen = {name: data for name, data in golden(Codec.NONE).items() if name not in NOT_FROZEN}
    assert write(Codec.NONE) == frozen


@pytest.mark.parametrize("codec", list(Codec))
def test_old_files_are_found_their_way_in(codec: Codec) -> None:
    log = Log(MemoryStore.holding(golden(codec)))
    end = log.end()
    assert (end.position, end.end_lsn, end.epoch) == (Position(Lsn(0x1700), 1), Lsn(0x1730), 2)
    start = log.resolve(AtTime(transaction(4).time))
    assert next(read_changes(log, start)).position == Position(Lsn(0x1500), 0)
    timelines = [log.header(name).identity.timeline for name in log.segments()]
    assert timelines == [1] * (len(timelines) - 1) + [2]


@pytest.mark.parametrize("codec", list(Codec))
def test_old_logs_can_be_appended_to(codec: Codec) -> None:
    store = MemoryStore.holding(golden(codec))
    lease = Lease.acquire(store)
    assert lease.epoch == LEASE_EPOCH + 1
    appender = Appender.open(store, lease, TestLog().layout)
    assert appender is not None
    assert verify(store).findings == []
    assert retention.pins(store) == {"pipeline": Position(Lsn(0x1300), 1)}


def main() -> None:
    for codec in Codec:
        folder = FOLDER / codec.name.lower()
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in write(codec).items():
            (folder / name).write_bytes(data)
        head = struct.pack("<4sHHQ", b"TRle", 1, 0, LEASE_EPOCH)
        holder = b'{"pid": 4711, "host": "db1"}'
        (folder / "lease").write_bytes(head + struct.pack("<I", crc32c(head)) + holder)
    changes = all_changes(MemoryStore.holding(write(Codec.NONE)))
    EXPECTED.write_text("".join(line(change) + "\n" for change in changes))


if __name__ == "__main__":
    main()
