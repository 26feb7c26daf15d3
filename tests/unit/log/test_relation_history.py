"""The history of relations: each version once, with the position of its first change."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tailrace.log.relation_history import LogCursor, RelationHistory, logical_messages
from tailrace.position import Lsn, Position
from tailrace.wire import pgoutput
from tests.fix_log import (
    MOOD,
    Step,
    TestLog,
    insert,
    message,
    random_log,
    relation,
    transaction,
    truncate,
)

if TYPE_CHECKING:
    from tailrace.schema import Relation


def history(log: TestLog, cursor: LogCursor | None = None) -> RelationHistory:
    return RelationHistory(log.store, cursor)  # type: ignore[arg-type]


def versions(reader: RelationHistory) -> list[tuple[Relation, Position]]:
    return [(version.relation, version.position) for version in reader.read()]


def test_a_version_begins_with_its_first_change() -> None:
    log = TestLog()
    old, new = relation(1), relation(1, version=1)
    log.append(transaction(0, insert(old, 1), truncate(old, relation(2)), insert(new, 2)))
    lsn = transaction(0).lsn
    assert versions(history(log)) == [
        (old, Position(lsn, 0)),
        (relation(2), Position(lsn, 1)),
        (new, Position(lsn, 3)),
    ]


def test_only_what_was_added_is_read() -> None:
    log = TestLog()
    log.append(transaction(0))
    reader = history(log)
    assert [version.relation for version in reader.read()] == [relation(1)]
    assert reader.types == {MOOD.oid: MOOD}
    assert reader.type_names == {MOOD.oid: "mood"}
    assert reader.read() == []
    log.append(transaction(1))
    assert reader.read() == []
    log.append(transaction(2, insert(relation(1, version=1), 1)))
    assert [version.relation for version in reader.read()] == [relation(1, version=1)]


def test_a_cursor_resumes_where_the_last_run_ended() -> None:
    log = TestLog()
    log.append(transaction(0))
    reader = history(log)
    reader.read()
    assert reader.cursor is not None
    log.append(transaction(1, insert(relation(2), 1)))
    resumed = history(log, reader.cursor)
    assert [version.relation for version in resumed.read()] == [relation(2)]


def test_a_cursor_in_a_removed_segment_starts_from_the_first_one() -> None:
    log = TestLog()
    log.append(transaction(0))
    resumed = history(log, LogCursor("removed", 4096))
    assert [version.relation for version in resumed.read()] == [relation(1)]


def test_a_cursor_of_another_log_starts_from_the_first_segment() -> None:
    """GIVEN a log that was created again after a restore, with files of the same names."""
    before, log = TestLog(log_id="a"), TestLog(log_id="b")
    before.append(transaction(0))
    reader = history(before)
    reader.read()
    assert reader.cursor is not None
    log.append(transaction(0))
    log.append(transaction(1, insert(relation(2), 1)))
    resumed = history(log, reader.cursor)
    assert [version.relation for version in resumed.read()] == [relation(1), relation(2)]


def test_a_transaction_in_pieces() -> None:
    log = TestLog()
    table = relation(1)
    steps: list[Step] = [insert(table, 1), insert(table, 2)]
    steps += [insert(relation(1, version=1), 3), insert(relation(2), 4)]
    unit = transaction(0, *steps)
    log.append_pieces(unit, 3, 5, 6, 7)
    assert versions(history(log)) == [
        (table, Position(unit.lsn, 0)),
        (relation(1, version=1), Position(unit.lsn, 2)),
        (relation(2), Position(unit.lsn, 3)),
    ]


@pytest.mark.parametrize("seed", range(12))
def test_every_change_finds_its_columns(seed: int) -> None:
    log = random_log(random.Random(seed), entries=20, segment_bytes=500)
    found = versions(history(log))
    assert [position for _, position in found] == sorted(position for _, position in found)
    for change in log.changes():
        if change.relation is not None:
            oid = change.relation.oid
            *_, last = [
                table
                for table, position in found
                if table.oid == oid and position <= change.position
            ]
            assert last == change.relation


def test_logical_messages_have_the_lsn_of_their_commit() -> None:
    log = TestLog()
    wanted = message(5, b"one")
    outside = message(6, b"two", transactional=False)
    assert isinstance(wanted.message, pgoutput.Message)
    other = replace(wanted, message=replace(wanted.message, prefix="another"))
    log.append(transaction(0, insert(relation(1), 1)), transaction(1, wanted, other, outside))
    [entry] = log.entries
    assert list(logical_messages(entry, "note")) == [(transaction(1).lsn, b"one")]
    assert list(logical_messages(entry, "missing")) == []


def test_a_logical_message_in_a_later_piece() -> None:
    log = TestLog()
    unit = transaction(0, insert(relation(1), 1), message(5, b"one"))
    log.append_pieces(unit, 4)
    assert list(logical_messages(log.entries[-1], "note")) == [(Lsn(unit.lsn), b"one")]
