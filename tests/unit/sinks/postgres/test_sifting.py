"""Refused messages are found by halves, and hold back what follows them, not what precedes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.sinks.outcome import Verdict
from tailrace.sinks.postgres.failures import RefusedMessageError
from tailrace.sinks.postgres.sifting import sift
from tailrace.sinks.unaccepted import Unaccepted
from tests.unit.sinks.requests.test_engine import batch_of, numbers

if TYPE_CHECKING:
    import pyarrow as pa


class Session:
    """Takes any statement."""

    dsn = "host=localhost"

    def run(self, sql: str) -> None:
        pass


class Store:
    """Refuses whatever contains one of these messages."""

    def __init__(self, *refused: int) -> None:
        self._refused = set(refused)
        self.stored: list[int] = []

    def store(self, _session: Session, rows: pa.RecordBatch) -> None:
        own = numbers(rows)
        if self._refused & set(own):
            raise RefusedMessageError("it is too long", "")
        self.stored += own


def sifted(store: Any, batch: pa.RecordBatch, *, written: int = 0) -> dict[int, Verdict]:
    unaccepted = Unaccepted()
    session: Any = Session()
    sift(session, store, batch, unaccepted, written=written)
    return {numbers(each.message)[0]: each.outcome.verdict for each in unaccepted.failures()}


def test_a_refused_message_holds_back_the_later_ones_of_its_key() -> None:
    store = Store(1)
    assert sifted(store, batch_of(b"a", b"b", b"c", b"b", b"a")) == {
        1: Verdict.REFUSED,
        3: Verdict.UNSENT,
    }
    assert store.stored == [0, 2, 4]


def test_a_message_that_waits_holds_back_nothing_before_it() -> None:
    """GIVEN a refused message of key b, and a later one that changes key b to a WHEN messages of
    key a between them are stored by halves THEN these are not held back."""
    store = Store(0, 4)
    batch = batch_of(b"b", b"a", b"a", b"a", b"c", b"a", b"a", former={5: b"b"})
    assert sifted(store, batch) == {
        0: Verdict.REFUSED,
        4: Verdict.REFUSED,
        5: Verdict.UNSENT,
        6: Verdict.UNSENT,
    }
    assert store.stored == [1, 2, 3]


def test_more_refused_messages_are_enough_in_a_large_flush() -> None:
    """A flush of many messages is repeated less often."""
    keys = [b"%d" % number for number in range(300)]
    for written, found in ((0, 100), (250_000, 250)):
        assert len(sifted(Store(*range(300)), batch_of(*keys), written=written)) == found
