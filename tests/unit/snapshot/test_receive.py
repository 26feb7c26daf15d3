"""PostgreSQL's answer to a COPY is parsed alike, in whatever pieces it arrives."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import PostgresRefusedError, PostgresUnreachableError
from tailrace.snapshot.receive import Inbox
from tests.unit.snapshot.test_lines import ROWS, row


def message(kind: bytes, body: bytes = b"") -> bytes:
    return kind + (len(body) + 4).to_bytes(4, "big") + body


BEGIN = message(b"H", b"\0\0\0")
READY = message(b"Z", b"T")
END = message(b"c") + message(b"C", b"COPY 3\0") + READY
ASIDE = st.sampled_from(
    [
        message(b"N", b"SNOTICE\0Ma\tb\nd\0\0\0\5\n\0\0"),
        message(b"S", b"TimeZone\0UTC\0"),
        message(b"A", b"\0\0\0\1channel\0Z\0\0\0\5T\0"),
    ]
)
FAILED = message(b"E", b"SERROR\0VERROR\0C22012\0Mdivision by zero\0Dby naught\0\0")


def fed(inbox: Inbox, *pieces: bytes) -> list[bytes]:
    """The rows of these pieces, each of which is parsed before the next arrives."""
    found = []
    for piece in pieces:
        left = memoryview(piece)
        while left:
            count = min(len(inbox.space), len(left))
            inbox.space[:count] = left[:count]
            inbox.received(count)
            left = left[count:]
            if left and not inbox.worth_parsing:
                continue
            lines = inbox.lines()
            if len(lines):
                assert bytes(lines.text()).count(b"\n") == len(lines)
            found += [
                lines.data[begin:end].tobytes()
                for begin, end in zip(lines.begins, lines.ends, strict=True)
            ]
            inbox.clear()
    return found


@given(
    st.lists(ROWS.map(row) | ASIDE, max_size=30),
    st.lists(st.floats(0, 1), max_size=10),
    st.sampled_from([16, 64, 1000, 1 << 20]),
)
def test_all_rows_in_any_pieces(sent: list[bytes], cuts: list[float], size: int) -> None:
    stream = BEGIN + b"".join(sent) + END
    places = [0, *sorted(int(cut * len(stream)) for cut in cuts), len(stream)]
    inbox = Inbox(size)
    pieces = [stream[begin:end] for begin, end in pairwise(places)]
    assert fed(inbox, *pieces) == [each[5:] for each in sent if each.startswith(b"d")]
    assert inbox.complete
    assert inbox.error is None


@pytest.mark.parametrize("size", [16, 40, 1 << 20])
def test_torn_at_every_byte(size: int) -> None:
    lines = [b"1\ta\n", b"12345\n", b"\n", b"x" * 261 + b"\n", b"2\tb\n"]
    stream = BEGIN + b"".join(map(row, lines)) + message(b"N", b"Ma\nb\0\0") + row(b"3\n") + END
    for place in range(len(stream) + 1):
        inbox = Inbox(size)
        assert fed(inbox, stream[:place], stream[place:]) == [*lines, b"3\n"]
        assert inbox.complete
    assert fed(Inbox(size), *(bytes([byte]) for byte in stream)) == [*lines, b"3\n"]


def test_no_rows() -> None:
    inbox = Inbox()
    assert fed(inbox, BEGIN + END) == []
    assert inbox.complete


def test_the_memory_of_a_large_row_is_released() -> None:
    inbox = Inbox(1 << 10)
    large = b"x" * 100_000 + b"\n"
    assert fed(inbox, BEGIN + row(large) + row(b"1\n")) == [large, b"1\n"]
    assert len(inbox.space) == 1 << 10


@pytest.mark.parametrize("before", [b"", BEGIN, BEGIN + row(b"1\n")])
def test_an_error_of_the_statement(before: bytes) -> None:
    inbox = Inbox()
    fed(inbox, before + FAILED)
    assert not inbox.complete
    fed(inbox, READY)
    assert inbox.complete
    assert isinstance(inbox.error, PostgresRefusedError)
    assert "division by zero: by naught (SQLSTATE 22012)" in str(inbox.error)


def test_messages_after_the_end_are_awaited() -> None:
    inbox = Inbox()
    late = message(b"A", b"\0\0\0\1channel\0payload\0")
    fed(inbox, BEGIN + END + late[:7])
    assert not inbox.complete
    fed(inbox, late[7:])
    assert inbox.complete


@pytest.mark.parametrize(
    "sent", [b"d\0\0\0\3", b"d\x7f\0\0\0", b"\0\0\0\5T", message(b"T", b"\0\0")]
)
def test_anything_else_is_refused(sent: bytes) -> None:
    with pytest.raises(PostgresUnreachableError, match="synchronization"):
        fed(Inbox(), BEGIN + sent)
