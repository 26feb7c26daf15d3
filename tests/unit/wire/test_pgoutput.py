"""pgoutput messages: byte by byte against PostgreSQL's documentation, and round trips."""

from __future__ import annotations

import pickle
import tracemalloc
from dataclasses import FrozenInstanceError, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.change import ABSENT, UNCHANGED, Binary, Row
from tailrace.errors import MalformedError
from tailrace.position import Lsn
from tailrace.schema import Column, Relation, ReplicaIdentity, TypeName
from tailrace.wire.pgoutput import (
    AnyMessage,
    Begin,
    Commit,
    Delete,
    Insert,
    Message,
    OldKey,
    OldRow,
    Origin,
    Truncate,
    Update,
    key_row,
    parse,
    write,
)
from tailrace.wire.pgtime import PgTime

OID = bytes.fromhex("00004000")
LSN = bytes.fromhex("00000016b374d848")
TIME = bytes.fromhex("0002be2b7c4d5e6f")

USERS = Relation(
    oid=0x4000,
    namespace="public",
    name="users",
    replica_identity=ReplicaIdentity.DEFAULT,
    columns=(
        Column(name="id", type_oid=23, key=True),
        Column(name="naïve", type_oid=1043, type_modifier=36),
    ),
)

EXAMPLES: dict[str, tuple[bytes, AnyMessage]] = {
    "begin": (
        b"B" + LSN + TIME + bytes.fromhex("ffffffff"),
        Begin(
            final_lsn=Lsn.parse("16/B374D848"),
            committed_at=PgTime(0x0002BE2B7C4D5E6F),
            xid=0xFFFFFFFF,
        ),
    ),
    "begin before 2000": (
        b"B" + LSN + b"\xff" * 8 + b"\0\0\0\x07",
        Begin(final_lsn=Lsn.parse("16/B374D848"), committed_at=PgTime(-1), xid=7),
    ),
    "commit": (
        b"C\0" + LSN + bytes.fromhex("00000016b374d878") + TIME,
        Commit(
            commit_lsn=Lsn.parse("16/B374D848"),
            end_lsn=Lsn.parse("16/B374D878"),
            committed_at=PgTime(0x0002BE2B7C4D5E6F),
        ),
    ),
    "origin": (
        b"O" + LSN + b"pg_16389\0",
        Origin(lsn=Lsn.parse("16/B374D848"), name="pg_16389"),
    ),
    "relation": (
        b"R" + OID + b"public\0users\0d" + b"\0\x02"
        b"\x01id\0" + b"\0\0\0\x17" + b"\xff\xff\xff\xff"
        b"\x00na\xc3\xafve\0" + b"\0\0\x04\x13" + b"\0\0\0\x24",
        USERS,
    ),
    "relation without columns, in pg_catalog": (
        b"R" + OID + b"\0odd\0f\0\0",
        Relation(
            oid=0x4000,
            namespace="pg_catalog",
            name="odd",
            replica_identity=ReplicaIdentity.FULL,
            columns=(),
        ),
    ),
    "type": (
        b"Y\0\0\x40\x01shop\0mood\0",
        TypeName(oid=0x4001, namespace="shop", name="mood"),
    ),
    "type in pg_catalog": (
        b"Y\xff\xff\xff\xff\0int4\0",
        TypeName(oid=0xFFFFFFFF, namespace="pg_catalog", name="int4"),
    ),
    "insert": (
        b"I"
        + OID
        + b"N\0\x05"
        + b"t\0\0\0\x0242"
        + b"n"
        + b"u"
        + b"b\0\0\0\x01\xff"
        + b"t\0\0\0\0",
        Insert(oid=0x4000, new=(b"42", None, UNCHANGED, Binary(b"\xff"), b"")),
    ),
    "insert of no columns": (b"I" + OID + b"N\0\0", Insert(oid=0x4000, new=())),
    "update": (
        b"U" + OID + b"N\0\x01t\0\0\0\x01a",
        Update(oid=0x4000, old=None, new=(b"a",)),
    ),
    "update with old key": (
        b"U" + OID + b"K\0\x02t\0\0\0\x011n" + b"N\0\x02t\0\0\0\x012u",
        Update(oid=0x4000, old=OldKey((b"1", None)), new=(b"2", UNCHANGED)),
    ),
    "update with old row": (
        b"U" + OID + b"O\0\x01n" + b"N\0\x01t\0\0\0\x01a",
        Update(oid=0x4000, old=OldRow((None,)), new=(b"a",)),
    ),
    "delete by key": (
        b"D" + OID + b"K\0\x02t\0\0\0\x011n",
        Delete(oid=0x4000, old=OldKey((b"1", None))),
    ),
    "delete with old row": (
        b"D" + OID + b"O\0\x01t\0\0\0\x03\xe2\x82\xac",
        Delete(oid=0x4000, old=OldRow(("€".encode(),))),
    ),
    "truncate": (b"T\0\0\0\x01\0" + OID, Truncate(oids=(0x4000,))),
    "truncate cascade": (
        b"T\0\0\0\x02\x01" + OID + b"\0\0\0\x05",
        Truncate(oids=(0x4000, 5), cascade=True),
    ),
    "truncate restart identity": (
        b"T\0\0\0\x01\x02" + OID,
        Truncate(oids=(0x4000,), restart_identity=True),
    ),
    "truncate with both": (
        b"T\0\0\0\x01\x03" + OID,
        Truncate(oids=(0x4000,), cascade=True, restart_identity=True),
    ),
    "message": (
        b"M\x01" + LSN + b"audit\0" + b"\0\0\0\x03\0\xff\0",
        Message(
            transactional=True,
            lsn=Lsn.parse("16/B374D848"),
            prefix="audit",
            content=b"\0\xff\0",
        ),
    ),
    "message outside of transactions": (
        b"M\0" + LSN + b"\0" + b"\0\0\0\0",
        Message(transactional=False, lsn=Lsn.parse("16/B374D848"), prefix="", content=b""),
    ),
}
BYTES = {name: data for name, (data, _) in EXAMPLES.items()}
VALUES = {name: value for name, (_, value) in EXAMPLES.items()}


@pytest.mark.parametrize("name", EXAMPLES)
def test_documented_layout(name: str) -> None:
    assert parse(BYTES[name]) == VALUES[name]
    assert write(VALUES[name]) == BYTES[name]


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_memoryview_is_as_good_as_bytes(name: str) -> None:
    framed = b"#" + BYTES[name] + b"#"
    message = parse(memoryview(framed)[1:-1])
    assert message == VALUES[name]
    assert hash(message) == hash(VALUES[name])


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_cut_is_malformed(name: str) -> None:
    data = BYTES[name]
    for length in range(len(data)):
        with pytest.raises(MalformedError, match=r"expected .* at byte \d+, found "):
            parse(data[:length])


@pytest.mark.parametrize("name", EXAMPLES)
def test_trailing_bytes_are_malformed(name: str) -> None:
    with pytest.raises(MalformedError):
        parse(BYTES[name] + b"\0")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "pgoutput message: expected a type out of b'BCORYIUDTM' at byte 0, found the end"),
        (
            b"S\0",
            "pgoutput message: expected a type out of b'BCORYIUDTM' at byte 0, found b'S\\x00'",
        ),
        (
            b"B",
            "Begin: expected final LSN, commit time and xid in 20 bytes at byte 1, found the end",
        ),
        (
            BYTES["begin"] + b"12",
            "Begin: expected the end of the message at byte 21, found 2 more bytes",
        ),
        (b"C\x01" + LSN * 3, "Commit: expected flags within 0x00 at byte 1, found 0x01"),
        (
            b"O" + LSN + b"name",
            "Origin: expected the origin's name with a NUL at its end at byte 9, found b'name'",
        ),
        (
            b"O" + LSN + b"n\xff\0",
            "Origin: expected the origin's name in UTF-8 at byte 10, found b'\\xff\\x00'",
        ),
        (
            b"R" + OID + b"pg_catalog\0t\0d\0\0",
            "Relation: expected the schema pg_catalog as an empty name at byte 5, "
            "found b'pg_catal'",
        ),
        (
            b"R" + OID + b"s\0t\0x\0\0",
            "Relation: expected a replica identity out of b'dnfi' at byte 9, found b'x\\x00\\x00'",
        ),
        (
            b"R" + OID + b"s\0t\0d\xff\xff",
            "Relation: expected a count of columns that fits the message at byte 10, found -1",
        ),
        (
            b"R" + OID + b"s\0t\0d\0\x02" + b"\0" * 19,
            "Relation: expected a count of columns that fits the message at byte 10, found 2",
        ),
        (
            b"R" + OID + b"s\0t\0d\0\x01\x02a\0" + b"\0" * 8,
            "Relation: expected flags within 0x01 at byte 12, found 0x02",
        ),
        (
            b"I" + OID + b"K\0\0",
            "Insert: expected a new row out of b'N' at byte 5, found b'K\\x00\\x00'",
        ),
        (
            b"I" + OID + b"N\0\x01x",
            "Insert: expected a value kind out of b'tbnu' at byte 8, found b'x'",
        ),
        (
            b"I" + OID + b"N\0\x01t\x7f\xff\xff\xff",
            "Insert: expected a value length that fits the message at byte 9, "
            "found b'\\x7f\\xff\\xff\\xff'",
        ),
        (
            b"I" + OID + b"N\0\x01b\xff\xff\xff\xff",
            "Insert: expected a value length that fits the message at byte 9, "
            "found b'\\xff\\xff\\xff\\xff'",
        ),
        (
            b"U" + OID + b"K\0\0K\0\0",
            "Update: expected a new row out of b'N' at byte 8, found b'K\\x00\\x00'",
        ),
        (
            b"D" + OID + b"N\0\0",
            "Delete: expected an old key or an old row out of b'KO' at byte 5, "
            "found b'N\\x00\\x00'",
        ),
        (b"T\0\0\0\0\x04", "Truncate: expected flags within 0x03 at byte 5, found 0x04"),
        (
            b"T\x7f\xff\xff\xff\0" + OID,
            "Truncate: expected a count of relations for 4 bytes at byte 1, found 2147483647",
        ),
        (
            b"T\xff\xff\xff\xff\0",
            "Truncate: expected a count of relations for 0 bytes at byte 1, found -1",
        ),
        (b"M\x02" + LSN, "Message: expected flags within 0x01 at byte 1, found 0x02"),
        (
            b"M\0" + LSN + b"\0\xff\xff\xff\xff",
            "Message: expected a length of the content that fits the message at byte 11, found -1",
        ),
    ],
)
def test_an_error_names_what_was_expected_and_where(data: bytes, message: str) -> None:
    with pytest.raises(MalformedError) as caught:
        parse(data)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "data",
    [
        b"R" + OID + b"s\0t\0d\x7f\xff",
        b"I" + OID + b"N\x7f\xff",
        b"I" + OID + b"N\0\x01t\x7f\xff\xff\xff",
        b"T\x7f\xff\xff\xff\0",
        b"M\0" + LSN + b"\0\x7f\xff\xff\xff",
    ],
)
def test_a_length_is_refused_before_anything_is_allocated(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MalformedError):
            parse(data)
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024
    finally:
        tracemalloc.stop()


LSN_0 = Lsn(0)
ROW_OF_ABSENT: Row = (ABSENT,)


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (Insert(oid=1, new=ROW_OF_ABSENT), "absent"),
        (Delete(oid=1, old=OldKey((b"1", ABSENT))), "absent"),
        (Insert(oid=1, new=(None,) * 0x8000), "fit"),
        (Insert(oid=-1, new=()), "fit"),
        (Begin(final_lsn=LSN_0, committed_at=PgTime(0), xid=1 << 32), "fit"),
        (Begin(final_lsn=LSN_0, committed_at=PgTime(1 << 63), xid=1), "fit"),
        (Commit(flags=1, commit_lsn=LSN_0, end_lsn=LSN_0, committed_at=PgTime(0)), "flag"),
        (Origin(lsn=LSN_0, name="a\0b"), "NUL"),
        (Origin(lsn=LSN_0, name="\ud800"), "fit"),
        (TypeName(oid=1, namespace="", name="t"), "schema"),
        (replace(USERS, namespace=""), "schema"),
        (replace(USERS, columns=(Column(name="c", type_oid=1, type_modifier=1 << 31),)), "fit"),
    ],
)
def test_what_the_wire_cannot_carry_is_not_written(message: AnyMessage, complaint: str) -> None:
    with pytest.raises(MalformedError, match=complaint):
        write(message)


def test_only_messages_are_written() -> None:
    with pytest.raises(AssertionError):
        write(cast("AnyMessage", "BEGIN"))
    with pytest.raises(AssertionError):
        write(Insert(oid=1, new=(cast("bytes", "text"),)))


def test_messages_are_values() -> None:
    begin = VALUES["begin"]
    assert pickle.loads(pickle.dumps(begin)) == begin
    assert isinstance(begin, Begin)
    assert isinstance(begin.final_lsn, Lsn)
    assert repr(begin.committed_at) == "PgTime(772043931737711)"
    with pytest.raises(FrozenInstanceError):
        begin.xid = 8  # type: ignore[misc]


def test_an_old_key_has_its_other_columns_absent() -> None:
    assert key_row((b"1", None), USERS) == (b"1", ABSENT)
    assert key_row((None, b"x"), USERS) == (None, ABSENT)


def test_an_old_key_of_another_relation_is_malformed() -> None:
    with pytest.raises(MalformedError, match=r"public\.users has 1 columns, its relation has 2"):
        key_row((b"1",), USERS)


def test_times() -> None:
    assert PgTime(0).to_datetime() == datetime(2000, 1, 1, tzinfo=UTC)
    assert PgTime(-1).to_datetime() == datetime(1999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    east = datetime(2000, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    assert PgTime.of(east) == PgTime(0)


@pytest.mark.parametrize("micros", [(1 << 63) - 1, 1 << 62, 1 << 200])
def test_times_beyond_datetime_are_clamped(micros: int) -> None:
    assert PgTime(micros).to_datetime() == datetime.max.replace(tzinfo=UTC)
    assert PgTime(-micros).to_datetime() == datetime.min.replace(tzinfo=UTC)


@given(st.datetimes(timezones=st.just(UTC)))
def test_every_datetime_survives(when: datetime) -> None:
    assert PgTime.of(when).to_datetime() == when


oids = st.integers(0, (1 << 32) - 1)
lsns = st.builds(Lsn, st.integers(0, (1 << 64) - 1))
times = st.builds(PgTime, st.integers(-(1 << 63), (1 << 63) - 1))
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
namespaces = st.just("pg_catalog") | names.filter(bool)
values = st.none() | st.just(UNCHANGED) | st.binary() | st.builds(Binary, st.binary())
rows = st.lists(values).map(tuple)
olds = st.builds(OldKey, rows) | st.builds(OldRow, rows)
columns = st.builds(
    Column,
    name=names,
    type_oid=oids,
    type_modifier=st.integers(-(1 << 31), (1 << 31) - 1),
    key=st.booleans(),
)
messages = st.one_of(
    st.builds(Begin, final_lsn=lsns, committed_at=times, xid=oids),
    st.builds(Commit, commit_lsn=lsns, end_lsn=lsns, committed_at=times, flags=st.just(0)),
    st.builds(Origin, lsn=lsns, name=names),
    st.builds(
        Relation,
        oid=oids,
        namespace=namespaces,
        name=names,
        replica_identity=st.sampled_from(ReplicaIdentity),
        columns=st.lists(columns).map(tuple),
    ),
    st.builds(TypeName, oid=oids, namespace=namespaces, name=names),
    st.builds(Insert, oid=oids, new=rows),
    st.builds(Update, oid=oids, old=st.none() | olds, new=rows),
    st.builds(Delete, oid=oids, old=olds),
    st.builds(
        Truncate,
        oids=st.lists(oids).map(tuple),
        cascade=st.booleans(),
        restart_identity=st.booleans(),
    ),
    st.builds(Message, transactional=st.booleans(), lsn=lsns, prefix=names, content=st.binary()),
)


@given(messages)
def test_every_message_survives(message: AnyMessage) -> None:
    assert parse(write(message)) == message


@given(st.binary() | st.builds(bytes.__add__, st.sampled_from(list(BYTES.values())), st.binary()))
def test_what_parses_is_written_back_byte_for_byte(data: bytes) -> None:
    try:
        message = parse(data)
    except MalformedError:
        return
    assert write(message) == data
