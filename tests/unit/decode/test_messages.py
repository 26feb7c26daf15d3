"""Messages of an entry as columns, and the annotations among them."""

from __future__ import annotations

import numpy as np
import pytest

from tailrace.decode.annotations import AnnotationReader
from tailrace.decode.messages import Messages
from tailrace.errors import MalformedError
from tailrace.log.format.entry import Entry, Kind, pack
from tailrace.position import Lsn, Position
from tailrace.wire import pgoutput
from tailrace.wire.pgoutput import AnyMessage, PgTime

INSERT = pgoutput.Insert(oid=7, new=(b"x",))


def begin(lsn: int) -> pgoutput.Begin:
    return pgoutput.Begin(final_lsn=Lsn(lsn), committed_at=PgTime(lsn * 10), xid=lsn + 1)


def commit(lsn: int) -> pgoutput.Commit:
    return pgoutput.Commit(commit_lsn=Lsn(lsn), end_lsn=Lsn(lsn + 5), committed_at=PgTime(lsn * 10))


def note(prefix: str, content: bytes = b"", *, lsn: int = 1, inside: bool = True) -> AnyMessage:
    return pgoutput.Message(transactional=inside, lsn=Lsn(lsn), prefix=prefix, content=content)


def entry(*messages: AnyMessage, **fields: object) -> Entry:
    offsets, body = pack([pgoutput.write(message) for message in messages])
    known: dict[str, object] = {
        "kind": Kind.TRANSACTIONS, "first": Position(Lsn(50)), "last": Position(Lsn(90)),
        "end_lsn": Lsn(95), "first_time": 400, "last_time": 900, "offsets": offsets, "body": body,
    }  # fmt: skip
    return Entry(**(known | fields))  # type: ignore[arg-type]


def test_positions_of_whole_transactions() -> None:
    """The example in the documentation of `Messages`."""
    truncate = pgoutput.Truncate(oids=(7, 8))
    messages = Messages(
        entry(begin(50), INSERT, INSERT, commit(50), begin(90), truncate, INSERT, commit(90))
    )
    assert bytes(messages.kinds) == b"BIICBTIC"
    assert messages.ordinal.tolist() == [0, 0, 1, 2, 0, 0, 2, 3]
    assert messages.lsn.tolist() == [50] * 4 + [90] * 4
    assert messages.time.tolist() == [500] * 4 + [900] * 4
    assert messages.xid.tolist() == [51] * 4 + [91] * 4


def test_a_fragment_continues_the_ordinals_of_its_header() -> None:
    messages = Messages(
        entry(INSERT, INSERT, kind=Kind.FRAGMENT, first=Position(Lsn(50), 30), xid=7, begins=False)
    )
    assert messages.ordinal.tolist() == [30, 31]
    assert (messages.lsn.tolist(), messages.xid.tolist()) == ([50, 50], [7, 7])


def test_a_non_transactional_message_has_its_own_lsn_and_the_time_before_it() -> None:
    outside = note("p", lsn=70, inside=False)
    messages = Messages(entry(outside, begin(90), INSERT, commit(90)))
    assert (messages.lsn[0], messages.ordinal[0], messages.xid[0]) == (69, 0, 0)
    assert (messages.time[0], messages.ordinal[2]) == (400, 0)


def test_prefixes_and_contents() -> None:
    messages = Messages(entry(begin(50), note("a", b"1\0"), note("", b""), commit(50)))
    assert messages.prefixes.to_pylist() == ["a", ""]
    assert messages.contents.to_pylist() == [b"1\0", b""]
    assert messages.logical_with(frozenset({"a"})) == [0]


@pytest.mark.parametrize("cut", [1, 3])
def test_a_content_that_does_not_fill_its_message_is_refused(cut: int) -> None:
    raw = pgoutput.write(note("a", b"1234"))
    offsets, body = pack([raw[:-cut], pgoutput.write(INSERT)])
    with pytest.raises(MalformedError, match="does not fill its message"):
        Messages(entry(offsets=offsets, body=body))


def in_force(reader: AnnotationReader, read: Entry) -> list[str | None]:
    """The annotations of every insert."""
    messages = Messages(read)
    annotations = reader.read(messages, read)
    inserts = np.flatnonzero(messages.kinds == ord("I"))
    if annotations is None:
        return [None] * len(inserts)
    group = annotations.onto(messages.group(None, None, inserts))  # type: ignore[arg-type]
    texts = group.annotations
    return [None] * len(inserts) if texts is None else list(texts.to_pylist())


SET, CLEAR = "tailrace:annotations.set", "tailrace:annotations.clear"


def test_annotations_hold_until_they_are_cleared_or_the_transaction_ends() -> None:
    read = entry(
        begin(50), INSERT, note(SET, b'{"by": 1}'), INSERT, note(CLEAR), INSERT,
        note(SET, b"plain"), INSERT, commit(50), begin(90), INSERT, commit(90),
    )  # fmt: skip
    assert in_force(AnnotationReader(), read) == [None, '{"by": 1}', None, '"plain"', None]


def test_annotations_continue_in_the_next_fragment_of_their_transaction_only() -> None:
    reader = AnnotationReader()
    first = entry(
        begin(50), note(SET, b"1"), INSERT, kind=Kind.FRAGMENT, ends=False, last=Position(Lsn(50))
    )
    more = entry(INSERT, kind=Kind.FRAGMENT, begins=False, ends=False, last=Position(Lsn(50)))
    assert in_force(reader, first) == ["1"]
    assert in_force(reader, more) == ["1"]
    other = entry(INSERT, kind=Kind.FRAGMENT, begins=False, first=Position(Lsn(60)))
    assert in_force(reader, other) == [None]


def test_other_messages_are_not_annotations() -> None:
    read = entry(begin(50), note("tailrace:other", b"1"), INSERT, commit(50))
    assert in_force(AnnotationReader(), read) == [None]
