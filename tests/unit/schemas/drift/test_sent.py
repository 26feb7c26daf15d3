"""What the stream has shown of truncations and relations, from a log on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.log.store import LocalStore
from tailrace.position import ORIGIN, Position
from tailrace.schemas.drift.compare import NOTHING_SENT
from tailrace.schemas.drift.sent import log_end, read_sent
from tests.fix_log import TestLog, insert, relation, transaction, truncate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def log(tmp_path: Path) -> Iterator[TestLog]:
    created = TestLog(LocalStore(tmp_path))  # type: ignore[arg-type]
    yield created
    created.close()


def test_truncated_tables_have_the_transactions_that_truncated_them(
    log: TestLog, tmp_path: Path
) -> None:
    one, two = relation(1), relation(2)
    log.append(transaction(0, insert(one, 1), truncate(one, two)), transaction(1, truncate(one)))
    sent = read_sent(tmp_path, str(ORIGIN))
    assert sent.truncated == {1: frozenset({700, 701}), 2: frozenset({700})}
    assert sent.stated == {1, 2}


def test_only_changes_after_the_position_count(log: TestLog, tmp_path: Path) -> None:
    log.append(transaction(0, truncate(relation(1))))
    log.append(transaction(1, truncate(relation(2))))
    sent = read_sent(tmp_path, str(Position(transaction(0).lsn, 0)))
    assert sent.truncated == {2: frozenset({701})}


def test_a_truncation_in_a_later_piece_of_a_transaction(log: TestLog, tmp_path: Path) -> None:
    table = relation(1)
    log.append_pieces(transaction(0, insert(table, 1), insert(table, 2), truncate(table)), 4)
    assert read_sent(tmp_path, str(ORIGIN)).truncated == {1: frozenset({700})}


def test_without_a_log_nothing_was_sent(tmp_path: Path) -> None:
    assert read_sent(tmp_path / "missing", str(ORIGIN)) == NOTHING_SENT
    assert log_end(tmp_path / "missing") is None


def test_an_invalid_position_is_nothing_sent(log: TestLog, tmp_path: Path) -> None:
    log.append(transaction(0, truncate(relation(1))))
    assert read_sent(tmp_path, "") == NOTHING_SENT
    end = log_end(tmp_path)
    assert end is not None
    assert end.position.lsn == transaction(0).lsn
