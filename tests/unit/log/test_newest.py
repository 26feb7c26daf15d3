"""The newest changes, compared with a walk over the whole log, and the places of changes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tailrace.change import Op
from tailrace.errors import ConfigError
from tailrace.log import newest as module
from tailrace.log.changes import read_changes
from tailrace.log.choice import Choice
from tailrace.log.newest import newest, place_of
from tailrace.log.reader import Log
from tailrace.position import Lsn, Position
from tests.chance import seeds
from tests.fix_log import TestLog, insert, random_log, relation, transaction

if TYPE_CHECKING:
    from tailrace.change import Change

SIZES = [1, 3, 50]


def pages(log: Log, choice: Choice, limit: int, **limits: int) -> list[Change]:
    """All pages, one after another."""
    found: list[Change] = []
    before: Position | None = None
    while True:
        page = newest(log, choice.takes, limit=limit, before=before, **limits)
        assert len(page.changes) <= limit
        found += page.changes
        if page.older is None:
            return found
        assert before is None or page.older < before
        before = page.older


@pytest.mark.parametrize("seed", seeds(100, short=20))
def test_all_pages_together_are_the_log_backwards(seed: int) -> None:
    """GIVEN a random log WHEN its pages are read with any limits and filters THEN together they are
    what a walk over the whole log finds, the newest first, each change once."""
    rng = random.Random(seed)
    written = random_log(rng)
    log, everything = Log(written.store), written.changes()
    for choice in (Choice(), Choice(op="update"), Choice(tables=("t1*",)), Choice(text="x")):
        expected = [each for each in everything if choice.takes(each)][::-1]
        for limit in SIZES:
            rows = rng.choice([1, 20, 10_000])
            found = pages(log, choice, limit, max_rows=rows, max_bytes=rng.choice([1, 8 << 20]))
            assert [each.position for each in found] == [each.position for each in expected]


@pytest.mark.parametrize("seed", seeds(50, short=10))
def test_every_change_has_a_place(seed: int) -> None:
    """GIVEN a random log WHEN changes are looked up THEN their entries contain them."""
    written = random_log(random.Random(seed))
    log = Log(written.store)
    for change in written.changes():
        place, found = place_of(log, change.position)
        assert found.position == change.position
        assert place.entry.first <= change.position <= place.entry.last
        assert place.bytes > 0
        missing = Position(change.position.lsn, change.position.ordinal + 10**6)
        with pytest.raises(ConfigError, match="there is no change"):
            place_of(log, missing)


def long_log(count: int) -> TestLog:
    written = TestLog(segment_bytes=20_000)
    table = relation(1)
    written.append_all(transaction(number, insert(table, number)) for number in range(count))
    return written


def test_a_page_reads_the_end_of_the_log_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN a long log WHEN a page is read, also with a filter that nothing matches THEN only as
    many changes as the limit says are decoded, and the next page begins there."""
    log, decoded = Log(long_log(3000).store), 0

    def counting(*arguments: Position) -> list[Change]:
        nonlocal decoded
        found = list(read_changes(*arguments))  # type: ignore[arg-type]
        decoded += len(found)
        return found

    monkeypatch.setattr(module, "read_changes", counting)
    first = newest(log, Choice().takes, limit=50)
    assert len(first.changes) == 50
    assert decoded <= 200
    decoded = 0
    page = newest(log, Choice(key="none").takes, limit=50, max_rows=1000)
    assert (page.changes, page.rows) == ([], decoded)
    assert 1000 <= decoded < 2000
    assert page.older is not None
    older = newest(log, Choice(key="none").takes, limit=50, max_rows=1000, before=page.older)
    assert older.older is not None
    assert older.older < page.older


def test_what_is_chosen() -> None:
    written = TestLog()
    table = relation(1)
    written.append(transaction(1, insert(table, 7, "apple"), insert(table, 8, "pear")))
    changes = written.changes()

    def chosen(choice: Choice) -> int:
        return sum(choice.takes(each) for each in changes)

    assert chosen(Choice()) == 2
    assert chosen(Choice(key="7")) == 1
    assert chosen(Choice(text="ea")) == 1
    assert chosen(Choice(tables=("public.t1",), op=Op.INSERT.value)) == 2
    assert chosen(Choice(tables=("t2",))) == chosen(Choice(op="delete")) == 0
    assert chosen(Choice(key="7", text="pear")) == 0


def test_a_log_without_changes() -> None:
    log = Log(TestLog().store)
    assert newest(log, Choice().takes, limit=5).changes == []
    with pytest.raises(ConfigError, match="there is no change"):
        place_of(log, Position(Lsn(5)))
