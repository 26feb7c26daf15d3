"""Seeking: any position, with any index, gives the place and schemas of a full walk."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tailrace.errors import PositionLostError
from tailrace.log.format import index
from tailrace.log.schema_book import SchemaBook
from tailrace.log.seek import Seeker
from tailrace.position import ORIGIN, Lsn, Position
from tests.fix_log import TestLog, random_log, transaction

if TYPE_CHECKING:
    from tailrace.log.reader import Log


@pytest.fixture(params=[100, 1 << 18], ids=["dense", "sparse"])
def spacing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index row every so many bytes."""
    monkeypatch.setattr(
        index.IndexBuilder.__init__, "__kwdefaults__", {"every_bytes": request.param}
    )


def walked(log: Log, after: Position) -> tuple[str, int, list[bytes]]:
    """The place after a position, by reading every entry of its segment."""
    end = log.end()
    names = [name for name in log.visible_segments(end) if log.header(name).base <= after]
    name = names[-1] if names else log.visible_segments(end)[0]
    schemas, offset = SchemaBook(), log.first_entry(name)
    for placed in log.entries(name, offset, end):
        if placed.entry.last > after:
            break
        schemas.note_entry(placed.entry)
        offset = placed.end
    return name.file, offset, schemas.messages()


@pytest.mark.usefixtures("spacing")
@pytest.mark.parametrize("seed", range(5))
def test_every_position_is_found(seed: int) -> None:
    made = random_log(random.Random(seed), segment_bytes=700)
    log = made.log()
    for change in made.changes():
        place, names = Seeker(log).find(change.position, log.end())
        expected = walked(log, change.position)
        assert (place.name.file, place.offset, place.schemas.messages()) == expected
        assert names[0] == place.name


def test_the_last_places_are_remembered() -> None:
    made = TestLog()
    made.append_all(transaction(number) for number in range(8))
    log, end = made.log(), made.log().end()
    positions = [change.position for change in made.changes()]
    seeker = Seeker(log)
    first = [seeker.find(position, end)[0] for position in positions[:5]]
    again = [seeker.find(position, end)[0] for position in positions[:5]]
    same = [one is other for one, other in zip(first, again, strict=True)]
    # Four are remembered. The search for the first one, which is forgotten, drops the second one.
    assert same == [False] * 5
    assert seeker.find(positions[4], end)[0] is again[4]


def test_a_position_before_the_log_is_lost() -> None:
    made = TestLog()
    made.append(transaction(1))
    log = made.log()
    with pytest.raises(PositionLostError, match="no longer in the log"):
        Seeker(log).find(Position(Lsn(1)), log.end())
    assert Seeker(log).find(ORIGIN, log.end())[0].offset


def test_a_wrong_index_row_is_not_followed() -> None:
    made = TestLog()
    made.append_all(transaction(number) for number in range(4))
    log, end = made.log(), made.log().end()
    name = log.visible_segments(end)[0]
    last = made.changes()[-1].position
    wrong = index.Row(offset=log.first_entry(name) + 7, first=ORIGIN, time_before=0, schemas=False)
    made.store.write_atomic(name.index, wrong.encode())
    place, _ = Seeker(log).find(last, end)
    assert (place.name.file, place.offset, place.schemas.messages()) == walked(log, last)
