"""Batches: received messages as columns, against the parser of single messages."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tailrace.capture.batch import Batch
from tailrace.errors import MalformedError
from tailrace.position import Lsn
from tailrace.schema import Column, Relation, ReplicaIdentity
from tailrace.wire import pgoutput
from tailrace.wire.pgoutput import AnyMessage, PgTime

TABLE = Relation(
    oid=7, namespace="public", name="t", replica_identity=ReplicaIdentity.DEFAULT,
    columns=(Column(name="v", type_oid=25),),
)  # fmt: skip
MESSAGES: list[AnyMessage] = [
    pgoutput.Begin(final_lsn=Lsn(0x50), committed_at=PgTime(-3), xid=9),
    pgoutput.Origin(lsn=Lsn(1), name="elsewhere"),
    TABLE,
    pgoutput.Insert(oid=7, new=(b"x",)),
    pgoutput.Truncate(oids=(7, 8)),
    pgoutput.Message(transactional=True, lsn=Lsn(0x40), prefix="in", content=b""),
    pgoutput.Commit(commit_lsn=Lsn(0x50), end_lsn=Lsn(0x58), committed_at=PgTime(-3)),
    pgoutput.Message(transactional=False, lsn=Lsn(0x60), prefix="out", content=b"c"),
]
RAW = [pgoutput.write(message) for message in MESSAGES]


def batch(raw: list[bytes]) -> Batch:
    return Batch.of(b"".join(raw), np.cumsum([len(each) for each in raw]).astype(np.uint32))


def test_kinds_and_places() -> None:
    received = batch(RAW)
    assert bytes(received.kinds) == b"BORITMCM"
    assert (received.begins.tolist(), received.commits.tolist()) == ([0], [6])
    assert received.loose.tolist() == [7]
    assert received.change_counts().tolist() == [0, 0, 0, 1, 2, 1, 0, 1]


def test_numbers_are_read_at_their_offset() -> None:
    received = batch(RAW)
    assert received.number(received.begins, 1).tolist() == [0x50]
    assert received.number(received.begins, 9, ">i8").tolist() == [-3]
    assert received.number(received.commits, 10).tolist() == [0x58]


def test_a_part_counts_from_its_own_start() -> None:
    part = batch(RAW).part(2, 8)
    assert (part.begins.tolist(), part.commits.tolist(), part.loose.tolist()) == ([], [4], [5])
    assert part.number(part.loose, 2).tolist() == [0x60]
    assert part.schemas() == [RAW[2]]
    assert part.origin() == []


@pytest.mark.parametrize("before", [[], [RAW[2], RAW[1]]])
def test_packing_puts_messages_before_the_batch(before: list[bytes]) -> None:
    offsets, body, schemas = batch(RAW).part(1, 4).packed(before)
    expected = [*before, *RAW[1:4]]
    assert [body[a:b] for a, b in itertools.pairwise(offsets)] == expected
    assert schemas == sum(raw[:1] == b"R" for raw in expected)


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ([b""], "empty"),
        ([RAW[0][:-1]], "a B message must have 21 bytes, got 20"),
        ([RAW[6] + b"x"], "a C message must have 26 bytes, got 27"),
        ([b"T" + b"\0" * 4], "a T message must have at least 6 bytes, got 5"),
        ([b"M" + b"\0" * 13], "a M message must have at least 15 bytes, got 14"),
    ],
)
def test_wrong_lengths_are_refused(raw: list[bytes], problem: str) -> None:
    with pytest.raises(MalformedError, match=problem):
        batch(raw)
