"""Verification: clean logs pass, and each kind of damage is found where it is."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tailrace.log.format import index
from tailrace.log.format import mark as marks
from tailrace.log.format.entry import Entry, Kind
from tailrace.log.format.layout import Codec, encode_entry
from tailrace.log.format.segment import list_segments, read_header, walk
from tailrace.log.verify import Defect, Report, Severity, verify
from tailrace.position import Lsn, Position
from tailrace.testing import MemoryStore
from tests.chance import seeds
from tests.fix_log import TestLog, insert, random_log, relation, transaction

Files = dict[str, bytes]


def errors(report: Report) -> list[Defect]:
    return [finding for finding in report.findings if finding.severity is Severity.ERROR]


def segments(files: Files) -> list[str]:
    return sorted(name for name in files if name.endswith(".seg"))


def places(files: Files, file: str) -> list[tuple[int, int, Entry]]:
    store = MemoryStore.holding(files)
    (name,) = [name for name in list_segments(store) if name.file == file]
    _, first = read_header(store, name)
    return [(placed.start, placed.end, placed.entry) for placed in walk(store, name, first)]


def rewritten(files: Files, file: str, number: int, **fields: object) -> Files:
    """The n-th entry of a segment with another header, and checksums that hold."""
    start, end, entry = places(files, file)[number]
    changed = replace(entry, **fields)  # type: ignore[arg-type]
    data = b"".join(encode_entry(changed, epoch=changed.epoch))
    assert len(data) == end - start
    return files | {file: files[file][:start] + data + files[file][end:]}


class Trimmed(MemoryStore):
    """Retention removes segments when the size of one is asked for the second time."""

    removed: tuple[str, ...] = ()
    trigger = ""
    calls = 0

    def size(self, name: str) -> int:
        self.calls += name == self.trigger
        if self.calls == 2:
            for each in self.removed:
                self.remove(each)
            self.removed = ()
        return super().size(name)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("trigger", [0, -1])
def test_segments_that_retention_removes_meanwhile_are_left_out(count: int, trigger: int) -> None:
    for seed in range(8):
        store = Trimmed()
        random_log(random.Random(seed), entries=20, store=store)
        removed = tuple(name.file for name in list_segments(store)[:count])
        store.trigger, store.removed = removed[trigger], removed
        found = verify(store)
        assert not set(removed) & set(store.names())
        assert [part.name for part in found.segments] == list_segments(store)
        assert found == verify(store)


@pytest.mark.parametrize("codec", list(Codec))
def test_clean_logs_are_clean(codec: Codec) -> None:
    for seed in range(8):
        made = random_log(random.Random(seed), entries=20, codec=codec)
        report = verify(made.store)
        assert report.findings == []
        assert report.ok
        assert report.end == made.appender.mark
        assert sum(part.changes for part in report.segments) == len(made.changes())
        assert [part.name for part in report.segments] == list_segments(made.store)
        assert all(part.bytes == made.store.size(part.name.file) for part in report.segments)


def test_verifying_changes_nothing(made: TestLog) -> None:
    before = made.store.files()
    verify(made.store)
    assert made.store.files() == before


def test_an_empty_store_has_nothing_wrong() -> None:
    report = verify(MemoryStore())
    assert report.ok
    assert report.segments == []


def test_every_flipped_byte_is_found_in_its_segment() -> None:
    made = TestLog(segment_bytes=700)
    made.append_all(transaction(number) for number in range(6))
    files = made.store.files()
    assert len(segments(files)) == 3
    for file in segments(files):
        for at in range(0, len(files[file]), 7):
            data = files[file]
            broken = data[:at] + bytes((data[at] ^ 2,)) + data[at + 1 :]
            report = verify(MemoryStore.holding(files | {file: broken}))
            assert {finding.file for finding in errors(report)} == {file}
            (first, *_) = errors(report)
            assert first.offset is not None
            assert first.offset <= at


def test_segments_after_a_damaged_one_are_checked_too() -> None:
    made = TestLog(segment_bytes=1)
    made.append_all(transaction(number) for number in range(6))
    files = made.store.files()
    names = segments(files)
    for file in (names[1], names[4]):
        files[file] = files[file][:-1] + b"?"
    found = errors(verify(MemoryStore.holding(files)))
    assert [finding.file for finding in found] == [names[1], names[4]]


@pytest.mark.parametrize("seed", seeds(6, short=2))
def test_logs_cut_by_retention_are_clean(seed: int) -> None:
    made = random_log(random.Random(seed), entries=20, segment_bytes=300)
    for name in list_segments(made.store)[:-1]:
        made.store.remove(name.file)
        made.store.remove(name.index)
        assert verify(made.store).findings == []


def test_a_missing_segment_is_found() -> None:
    made = TestLog(segment_bytes=1)
    made.append_all(transaction(number) for number in range(4))
    made.store.remove(list_segments(made.store)[2].file)
    (finding,) = errors(verify(made.store))
    assert "segments are missing" in finding.problem


def test_a_segment_of_another_log_is_found() -> None:
    one, other = TestLog(segment_bytes=1), TestLog(segment_bytes=1)
    one.append_all(transaction(number) for number in range(4))
    other.append_all(transaction(number, rows=3) for number in range(4))
    name = list_segments(one.store)[2].file
    files = one.store.files() | {name: other.store.files()[name]}
    assert any(
        "begins after" in found.problem for found in errors(verify(MemoryStore.holding(files)))
    )


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"first": Position(Lsn(1), 0)}, "follow"),
        ({"last": Position(Lsn(0x9000), 0)}, "header's first and last"),
        ({"end_lsn": Lsn(5)}, "end_lsn goes back"),
        ({"epoch": 0}, "epoch 0 follows epoch 1"),
        ({"changes": 7}, "claims 7 changes"),
        ({"kind": Kind.SCHEMA}, "in the middle"),
        ({"kind": Kind.FRAGMENT, "begins": False}, "not open"),
    ],
    ids=str,
)
def test_lies_under_a_checksum_that_holds_are_found(
    made: TestLog, fields: dict[str, object], problem: str
) -> None:
    files = made.store.files()
    changed = rewritten(files, segments(files)[0], 2, **fields)
    found = errors(verify(MemoryStore.holding(changed)))
    assert any(problem in finding.problem for finding in found), found


def test_a_transaction_that_never_ends_is_found() -> None:
    made = TestLog()
    made.append_pieces(transaction(0, rows=6), 4, 6)
    made.append(transaction(1))
    files = made.store.files()
    (file,) = segments(files)
    found = errors(verify(MemoryStore.holding(rewritten(files, file, 3, ends=False))))
    assert any("while a transaction is open" in finding.problem for finding in found)
    found = errors(verify(MemoryStore.holding(rewritten(files, file, 2, xid=99))))
    assert any("another transaction" in finding.problem for finding in found)


def test_an_opening_that_forgets_a_schema_is_found() -> None:
    made = TestLog(segment_bytes=1)
    made.append_all(transaction(number) for number in range(3))
    files = made.store.files()
    file = segments(files)[-1]
    start, end, opening = places(files, file)[0]
    less = replace(opening, schemas=0, offsets=opening.offsets[:1], body=b"")
    data = b"".join(encode_entry(less, epoch=1))
    files[file] = files[file][:start] + data + files[file][end:]
    mark = replace(made.appender.mark, offset=len(files[file]))
    files[marks.NAME] = mark.encode()
    found = errors(verify(MemoryStore.holding(files)))
    assert any("unknown relation" in finding.problem for finding in found)


def test_bytes_after_the_mark_are_noted_and_not_checked() -> None:
    made = TestLog(segment_bytes=500)
    made.append(transaction(0))
    made.append_pieces(transaction(1, rows=8), *range(3, 9), ending=False)
    report = verify(made.store)
    assert report.ok
    notes = [finding for finding in report.findings if finding.severity is Severity.NOTE]
    assert len(notes) >= len(list_segments(made.store)) - 1 > 1
    assert all("after the durable mark" in note.problem for note in notes)


@pytest.mark.parametrize("damage", ["gone", "torn"])
def test_a_mark_that_cannot_be_read_is_found(made: TestLog, damage: str) -> None:
    files = made.store.files()
    if damage == "gone":
        del files[marks.NAME]
    else:
        files[marks.NAME] = files[marks.NAME][:-1]
    (finding,) = errors(verify(MemoryStore.holding(files)))
    assert finding.file == marks.NAME


@pytest.mark.parametrize(
    "fields",
    [
        {"sequence": 4},
        {"position": Position(Lsn(9), 0)},
        {"end_lsn": Lsn(9)},
        {"time": 9},
        {"offset": 500},
        {"offset": 10_000},
    ],
    ids=str,
)
def test_a_mark_that_lies_is_found(made: TestLog, fields: dict[str, object]) -> None:
    mark = replace(made.appender.mark, **fields)  # type: ignore[arg-type]
    made.store.write_atomic(marks.NAME, mark.encode())
    assert not verify(made.store).ok


def test_damaged_and_misleading_index_rows_are_warned_of(made: TestLog) -> None:
    (name,) = list_segments(made.store)
    rows = index.read(made.store, name.index)
    wrong = replace(rows[0], first=Position(Lsn(7), 7))
    for content in (rows[0].encode()[:-1] + b"?", rows[0].encode() + b"?", wrong.encode()):
        made.store.write_atomic(name.index, content)
        report = verify(made.store)
        assert report.ok
        assert [finding.severity for finding in report.findings] == [Severity.WARNING]
        assert report.findings[0].file == name.index


def test_an_index_that_hides_a_schema_is_an_error() -> None:
    made = TestLog()
    made.append_all(transaction(n, insert(relation(1, version=n), 1)) for n in range(4))
    (name,) = list_segments(made.store)
    rows = index.read(made.store, name.index)
    made.store.write_atomic(name.index, rows[0].encode() + rows[-1].encode())
    (finding,) = errors(verify(made.store))
    assert "lacks a row for the schema change" in finding.problem


def test_a_lost_index_is_nothing_to_speak_of(made: TestLog) -> None:
    made.store.remove(list_segments(made.store)[0].index)
    assert verify(made.store).findings == []


def test_progress_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.log.verify._PROGRESS_BYTES", 500)
    made = random_log(random.Random(1), entries=30, segment_bytes=900)
    reports = list[tuple[int, int]]()
    verify(made.store, progress=lambda done, total: reports.append((done, total)))
    total = sum(made.store.size(name.file) for name in list_segments(made.store))
    assert len(reports) > 5
    assert reports == sorted(reports)
    assert all(entry[1] == total for entry in reports)
