"""Frames are parsed here word by word, as a server does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.jetstream.bulk import frames
from tailrace.message import GROUP, HEADERS, MESSAGES
from tests.unit.sinks.rows import rows

INBOX = b"_INBOX.abc."


@dataclass(frozen=True, slots=True)
class Published:
    subject: bytes
    reply: bytes
    fields: dict[bytes, bytes]
    payload: bytes


def read(data: bytes) -> list[Published]:
    found = []
    while data:
        line, data = data.split(b"\r\n", 1)
        verb, subject, *reply, header_size, total = line.split(b" ")
        assert verb == b"HPUB"
        header, payload = data[: int(header_size)], data[int(header_size) : int(total)]
        assert data[int(total) : int(total) + 2] == b"\r\n"
        first, *fields = header.removesuffix(b"\r\n\r\n").split(b"\r\n")
        assert first == b"NATS/1.0"
        pairs = [field.split(b": ", 1) for field in fields]
        found.append(Published(subject, b"".join(reply), dict(pairs), payload))
        data = data[int(total) + 2 :]
    return found


def bytes_of(framed: pa.Array) -> bytes:
    return b"".join(framed.to_pylist())


tokens = st.text("abcäü字-_$", min_size=1, max_size=8)
ids = st.text(st.characters(exclude_characters="\r\n\0", codec="utf-8"), max_size=20).map(str.strip)
messages = st.tuples(tokens, ids, st.binary(max_size=300))


def batch_of(found: list[tuple[str, str, bytes]], lsns: list[int]) -> pa.RecordBatch:
    count = len(found)
    columns = [
        pa.array([subject.encode() for subject, _, _ in found], pa.binary()),
        pa.array([name.encode() for _, name, _ in found], pa.binary()),
        pa.nulls(count, pa.binary()),
        pa.array([payload for _, _, payload in found], pa.binary()),
        pa.array(lsns, pa.uint64()),
        pa.array(range(count), pa.uint64()),
        pa.array([0] * count, pa.int64()),
        pa.array([0] * count, pa.uint64()),
        pa.nulls(count, pa.binary()),
        pa.nulls(count, HEADERS),
        pa.nulls(count, GROUP),
    ]
    return pa.record_batch(columns, schema=MESSAGES)


@given(st.lists(messages, max_size=20), st.integers(0, 10**12), st.integers(0, 5))
def test_every_row_is_read_back_as_it_was(
    found: list[tuple[str, str, bytes]], first: int, skipped: int
) -> None:
    batch = batch_of(found, [7] * len(found)).slice(skipped)
    framed = frames.frame(batch, inbox=INBOX, first=first)
    assert read(bytes_of(framed)) == [
        Published(
            subject.encode(),
            INBOX + b"%d" % (first + number),
            {b"Nats-Msg-Id": name.encode()},
            payload,
        )
        for number, (subject, name, payload) in enumerate(found[skipped:])
    ]
    assert frames.byte_bounds(framed)[-1] - frames.byte_bounds(framed)[0] == len(bytes_of(framed))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.integers(0, 10**9))
def test_atomic_batches_are_numbered_and_committed(sizes: list[int], first: int) -> None:
    batch = rows(range(sum(sizes)))
    starts = np.r_[0, np.cumsum(sizes)[:-1]].astype(np.int64)
    published = read(bytes_of(frames.frame_atomic(batch, starts, inbox=INBOX, first=first)))
    assert [one.payload for one in published] == batch.column("payload").to_pylist()
    for start, size in zip(starts.tolist(), sizes, strict=True):
        members = published[start : start + size]
        number = b"%d" % (first + start)
        if size == 1:
            assert members[0].reply == INBOX + number
            assert list(members[0].fields) == [b"Nats-Msg-Id"]
            continue
        assert {one.fields[b"Nats-Batch-Id"] for one in members} == {b"abc." + number}
        sequence = [int(one.fields[b"Nats-Batch-Sequence"]) for one in members]
        assert sequence == list(range(1, size + 1))
        assert [one.reply for one in members[:-1]] == [b""] * (size - 1)
        assert members[-1].reply == INBOX + number + b"-%d" % size
        commits = [one.fields.get(b"Nats-Batch-Commit") for one in members]
        assert commits == [None] * (size - 1) + [b"1"]


def test_header_sizes_are_known_before_framing() -> None:
    batch = rows(range(5))
    framed = bytes_of(frames.frame(batch, inbox=INBOX, first=0))
    sizes = [int(line.split()[3]) for line in framed.split(b"\r\n") if line.startswith(b"HPUB")]
    assert frames.header_bytes(batch).tolist() == sizes


@pytest.mark.parametrize(
    ("names", "rows"),
    [
        ([], []),
        ([b""], []),
        ([b"a", b"b"], []),
        ([b"a\nb\n"], [0]),
        ([b"", b"", b"\r"], [2]),
        ([b"a", b"b\0", b"", b"\n"], [1, 3]),
    ],
)
def test_ids_that_would_end_their_line_are_found(names: list[bytes], rows: list[int]) -> None:
    assert frames.broken_ids(pa.array(names, pa.binary())) == rows
    shifted = pa.array([b"\n\n", *names, b"\n\n"], pa.binary()).slice(1, len(names))
    assert frames.broken_ids(shifted) == rows


def test_fields_of_every_message() -> None:
    fields = b"\r\nTailrace-Pipeline: slot.bridge"
    batch = rows(range(5))
    one_by_one = frames.frame(batch, inbox=INBOX, first=0, fields=fields)
    atomic = frames.frame_atomic(batch, np.array([0, 1, 4]), inbox=INBOX, first=0, fields=fields)
    for framed in (one_by_one, atomic):
        found = read(bytes_of(framed))
        assert [each.payload for each in found] == batch["payload"].to_pylist()
        assert {each.fields[b"Tailrace-Pipeline"] for each in found} == {b"slot.bridge"}
