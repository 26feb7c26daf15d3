"""Streaming replication frames: byte by byte as PostgreSQL documents them, and round trips."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import MalformedError
from tailrace.position import Lsn
from tailrace.wire.pgtime import PgTime
from tailrace.wire.replication import Frame, Keepalive, StatusUpdate, XLogData, parse, write

LSN = bytes.fromhex("00000016b374d848")
TIME = bytes.fromhex("ffffffffffffffff")

EXAMPLES: dict[str, tuple[bytes, Frame]] = {
    "data": (
        b"w" + LSN + b"\0\0\0\x16\xb3\x74\xd8\x78" + TIME + b"B\0\xff",
        XLogData(
            start_lsn=Lsn.parse("16/B374D848"),
            end_lsn=Lsn.parse("16/B374D878"),
            sent_at=PgTime(-1),
            data=b"B\0\xff",
        ),
    ),
    "keepalive": (
        b"k" + LSN + TIME + b"\0",
        Keepalive(end_lsn=Lsn.parse("16/B374D848"), sent_at=PgTime(-1), reply_requested=False),
    ),
    "keepalive that wants an answer": (
        b"k" + LSN + TIME + b"\1",
        Keepalive(end_lsn=Lsn.parse("16/B374D848"), sent_at=PgTime(-1), reply_requested=True),
    ),
    "status update": (
        b"r" + LSN + b"\0" * 7 + b"\x02" + b"\0" * 7 + b"\x01" + TIME + b"\0",
        StatusUpdate(
            written=Lsn.parse("16/B374D848"), flushed=Lsn(2), applied=Lsn(1), sent_at=PgTime(-1)
        ),
    ),
    "status update that wants an answer": (
        b"r" + LSN * 3 + TIME + b"\1",
        StatusUpdate(
            written=Lsn.parse("16/B374D848"),
            flushed=Lsn.parse("16/B374D848"),
            applied=Lsn.parse("16/B374D848"),
            sent_at=PgTime(-1),
            reply_requested=True,
        ),
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_documented_layout(name: str) -> None:
    data, frame = EXAMPLES[name]
    assert parse(data) == frame
    assert parse(memoryview(b"#" + data)[1:]) == frame
    assert write(frame) == data


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_cut_is_malformed(name: str) -> None:
    data = EXAMPLES[name][0]
    # XLogData ends where its payload ends, so only its 25 fixed bytes can be missing.
    for length in range(min(len(data), 25) if data[:1] == b"w" else len(data)):
        with pytest.raises(MalformedError, match=r"expected .* at byte \d+, found "):
            parse(data[:length])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "replication frame: expected a type out of b'wkr' at byte 0, found the end"),
        (b"h", "replication frame: expected a type out of b'wkr' at byte 0, found b'h'"),
        (
            b"k" + LSN + TIME + b"\2",
            "Keepalive: expected whether a reply is requested out of b'\\x00\\x01' at byte 17, "
            "found b'\\x02'",
        ),
        (
            b"k" + LSN + TIME + b"\1\1",
            "Keepalive: expected the end of the message at byte 18, found 1 more bytes",
        ),
    ],
)
def test_an_error_names_what_was_expected_and_where(data: bytes, message: str) -> None:
    with pytest.raises(MalformedError) as caught:
        parse(data)
    assert str(caught.value) == message


def test_what_the_wire_cannot_carry_is_not_written() -> None:
    with pytest.raises(MalformedError, match="Keepalive: a value does not fit its field"):
        write(Keepalive(end_lsn=Lsn(0), sent_at=PgTime(1 << 63), reply_requested=False))
    with pytest.raises(AssertionError):
        write(cast("Frame", "k"))


lsns = st.builds(Lsn, st.integers(0, (1 << 64) - 1))
times = st.builds(PgTime, st.integers(-(1 << 63), (1 << 63) - 1))
frames = st.one_of(
    st.builds(XLogData, start_lsn=lsns, end_lsn=lsns, sent_at=times, data=st.binary()),
    st.builds(Keepalive, end_lsn=lsns, sent_at=times, reply_requested=st.booleans()),
    st.builds(
        StatusUpdate,
        written=lsns,
        flushed=lsns,
        applied=lsns,
        sent_at=times,
        reply_requested=st.booleans(),
    ),
)


@given(frames)
def test_every_frame_survives(frame: Frame) -> None:
    assert parse(write(frame)) == frame


@given(st.binary(min_size=18, max_size=60).map(lambda tail: b"wkr"[len(tail) % 3 :][:1] + tail))
def test_what_parses_is_written_back_byte_for_byte(data: bytes) -> None:
    try:
        frame = parse(data)
    except MalformedError:
        return
    assert write(frame) == data
