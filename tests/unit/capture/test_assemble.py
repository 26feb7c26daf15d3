from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.capture.assemble import Assembler
from tailrace.errors import MalformedError
from tailrace.log.changes import Decoder
from tailrace.log.format.entry import Entry, Kind
from tailrace.log.format.mark import Mark
from tailrace.position import Lsn, Position
from tailrace.schema import Column, Relation, ReplicaIdentity
from tailrace.wire import pgoutput
from tailrace.wire.pgoutput import PgTime

if TYPE_CHECKING:
    from collections.abc import Sequence

RELATION = Relation(
    oid=7,
    namespace="public",
    name="t",
    replica_identity=ReplicaIdentity.DEFAULT,
    columns=(Column(name="v", type_oid=25),),
)
INSERT = pgoutput.Insert(oid=7, new=(b"x" * 40,))
TRUNCATE = pgoutput.Truncate(oids=(7, 8, 9), cascade=False, restart_identity=False)
NOTE = pgoutput.Message(transactional=True, lsn=Lsn(1), prefix="p", content=b"c")
START = Mark(sequence=1, offset=0, position=Position(Lsn(99), 0), end_lsn=Lsn(100), time=5, epoch=1)


def transaction(lsn: int, *changes: pgoutput.AnyMessage) -> list[bytes]:
    begin = pgoutput.Begin(final_lsn=Lsn(lsn), committed_at=PgTime(lsn * 10), xid=lsn % 1000)
    commit = pgoutput.Commit(
        commit_lsn=Lsn(lsn), end_lsn=Lsn(lsn + 8), committed_at=PgTime(lsn * 10)
    )
    return [pgoutput.write(message) for message in (begin, *changes, commit)]


def loose(lsn: int) -> bytes:
    """A message whose record ends at `lsn`: it stands one byte before."""
    return pgoutput.write(
        pgoutput.Message(transactional=False, lsn=Lsn(lsn), prefix="p", content=b"loose")
    )


def take(assembler: Assembler, messages: Sequence[bytes]) -> tuple[list[Entry], int]:
    ends = np.cumsum([len(message) for message in messages]).astype(np.uint32)
    return assembler.take(b"".join(messages), ends)


def assembler(*, spill_bytes: int = 1 << 20, mark: Mark = START) -> Assembler:
    return Assembler(mark, spill_bytes=spill_bytes)


def raw(entries: Sequence[Entry]) -> list[bytes]:
    return [bytes(message) for entry in entries for message in entry.messages()]


def test_whole_transactions_become_one_entry() -> None:
    messages = [*transaction(100, RELATION, INSERT, INSERT), *transaction(200, TRUNCATE, NOTE)]
    [entry], covered = take(assembler(), messages)
    assert covered == len(messages)
    assert entry.kind is Kind.TRANSACTIONS
    assert raw([entry]) == messages
    assert (entry.first, entry.last) == (Position(Lsn(100), 0), Position(Lsn(200), 3))
    assert (entry.changes, entry.transactions, entry.schemas) == (6, 2, 1)
    assert (entry.end_lsn, entry.first_time, entry.last_time) == (Lsn(208), 1000, 2000)


def test_open_transaction_waits_for_its_commit() -> None:
    messages = [*transaction(100, INSERT), *transaction(200, INSERT)[:-1]]
    [entry], covered = take(assembler(), messages)
    assert covered == 3
    assert entry.last == Position(Lsn(100), 0)
    assert take(assembler(), transaction(200, INSERT)[:-1]) == ([], 0)


def test_large_transaction_becomes_fragments() -> None:
    messages = transaction(100, RELATION, *[INSERT] * 30)
    making = assembler(spill_bytes=200)
    first, covered = take(making, messages[:10])
    assert covered == 10
    assert not making.between_transactions
    second, _ = take(making, messages[10:20])
    third, _ = take(making, [*messages[20:], *transaction(200, INSERT)])
    assert making.between_transactions
    entries = [*first, *second, *third]
    assert [entry.kind.name for entry in entries] == ["FRAGMENT"] * 3 + ["TRANSACTIONS"]
    assert [(e.begins, e.ends) for e in entries[:3]] == [
        (True, False),
        (False, False),
        (False, True),
    ]
    assert [e.first.ordinal for e in entries[:3]] == [0, 8, 18]
    assert [e.end_lsn for e in entries] == [100, 100, 108, 208]
    assert raw(entries[:3]) == messages


def test_origin_is_restated_in_every_fragment() -> None:
    origin = pgoutput.Origin(lsn=Lsn(3), name="elsewhere")
    messages = transaction(100, origin, RELATION, *[INSERT] * 20)
    making = assembler(spill_bytes=200)
    entries = [
        entry
        for at in range(0, len(messages), 8)
        for entry in take(making, messages[at : at + 8])[0]
    ]
    assert len(entries) == 3
    decoder = Decoder()
    decoder.relations[7] = RELATION
    for entry in entries:
        assert {change.origin for change in decoder.decode([entry])} == {"elsewhere"}


def test_origin_that_arrives_after_begin_is_restated_too() -> None:
    origin = pgoutput.Origin(lsn=Lsn(3), name="elsewhere")
    messages = transaction(100, origin, INSERT, INSERT)
    making = assembler(spill_bytes=1)
    entries = [entry for message in messages for entry in take(making, [message])[0]]
    assert len(entries) == len(messages)
    decoder = Decoder()
    decoder.relations[7] = RELATION
    changes = [change for entry in entries for change in decoder.decode([entry])]
    assert [change.origin for change in changes] == ["elsewhere"] * 2


def test_loose_message_has_its_own_place_and_moves_nothing() -> None:
    messages = [loose(150), *transaction(200, INSERT), loose(250)]
    [entry], _ = take(assembler(), messages)
    assert (entry.first, entry.last) == (Position(Lsn(149), 0), Position(Lsn(249), 0))
    assert (entry.changes, entry.end_lsn, entry.first_time) == (3, 208, START.time)
    [alone], _ = take(assembler(), [loose(300)])
    assert alone.end_lsn == START.end_lsn


@pytest.mark.parametrize("cut", [1, 4])
def test_loose_message_does_not_hide_the_commit_where_its_record_ends(cut: int) -> None:
    messages = [loose(150), *transaction(150, INSERT)]
    making = assembler()
    entries = [*take(making, messages[:cut])[0], *take(making, messages[cut:])[0]]
    assert raw(entries) == messages
    decoder = Decoder()
    decoder.relations[7] = RELATION
    positions = [change.position for change in decoder.decode(entries)]
    assert positions == [Position(Lsn(149), 0), Position(Lsn(150), 0)]


def test_replayed_transactions_are_dropped_but_their_schemas_kept() -> None:
    messages = [*transaction(90, RELATION, INSERT), *transaction(99, INSERT)]
    making = assembler()
    assert take(making, messages) == ([], len(messages))
    [entry], _ = take(making, transaction(100, INSERT))
    assert raw([entry]) == [pgoutput.write(RELATION), *transaction(100, INSERT)]
    assert (entry.schemas, entry.changes) == (1, 1)


def test_replayed_fragments_are_dropped_to_their_commit() -> None:
    messages = transaction(90, RELATION, *[INSERT] * 20)
    making = assembler(spill_bytes=200)
    for at in range(0, len(messages), 8):
        entries, _ = take(making, messages[at : at + 8])
        assert entries == []
    [entry], _ = take(making, transaction(100, INSERT))
    assert raw([entry])[0] == pgoutput.write(RELATION)


def test_empty_transaction_moves_the_end() -> None:
    [entry], _ = take(assembler(), transaction(100))
    assert (entry.changes, entry.transactions, entry.end_lsn) == (0, 1, 108)


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        (transaction(200, INSERT)[1:], "pair up"),
        ([*transaction(200, INSERT)[:-1], *transaction(300, INSERT)], "pair up"),
        ([*transaction(300, INSERT), *transaction(200, INSERT)], "backwards"),
        ([transaction(200)[0], transaction(300)[1]], "another LSN"),
        ([transaction(200)[0], loose(150), transaction(200)[1]], "inside"),
        ([b"", *transaction(200)], "empty"),
        ([transaction(200)[0][:-1], transaction(200)[1]], "21 bytes"),
        ([transaction(200)[0], transaction(200)[1] + b"x"], "26 bytes"),
        ([b"M\0", *transaction(200)], "15 bytes"),
    ],
)
def test_broken_grammar_is_refused(messages: list[bytes], complaint: str) -> None:
    with pytest.raises(MalformedError, match=complaint):
        take(assembler(), messages)


def test_changes_outside_of_a_transaction_are_refused() -> None:
    with pytest.raises(MalformedError, match="outside of a transaction"):
        take(assembler(spill_bytes=100), [pgoutput.write(INSERT)] * 5)


change_lists = st.lists(
    st.sampled_from([INSERT, INSERT, TRUNCATE, NOTE, RELATION]), min_size=0, max_size=25
)


@given(
    units=st.lists(change_lists | st.none(), min_size=1, max_size=12),
    cuts=st.lists(st.integers(1, 9), min_size=1),
    spill_bytes=st.integers(60, 900),
)
def test_any_stream_cut_anywhere_is_the_same_stream(
    units: list[list[pgoutput.AnyMessage] | None], cuts: list[int], spill_bytes: int
) -> None:
    """However reads and flushes fall, the entries hold the same messages and positions."""
    lsns = range(100, 100 + 50 * len(units), 50)
    messages = [
        message
        for lsn, unit in zip(lsns, units, strict=True)
        for message in ([loose(lsn + 1)] if unit is None else transaction(lsn, *unit))
    ]
    making = assembler(spill_bytes=spill_bytes)
    entries: list[Entry] = []
    pending: list[bytes] = []
    at, turn = 0, 0
    while at < len(messages):
        step = cuts[turn % len(cuts)]
        turn += 1
        pending += messages[at : at + step]
        at += step
        made, covered = take(making, pending)
        entries += made
        pending = pending[covered:]
    assert pending == []
    assert raw(entries) == messages
    known = [
        Relation(
            oid=oid,
            namespace="public",
            name=f"t{oid}",
            replica_identity=ReplicaIdentity.DEFAULT,
            columns=RELATION.columns,
        )
        for oid in (7, 8, 9)
    ]
    decoder = Decoder()
    decoder.relations = {relation.oid: relation for relation in known}
    for entry in entries:
        positions = [change.position for change in decoder.decode([entry])]
        assert len(positions) == entry.changes
        if not positions:
            continue
        bounds = [entry.first, *positions, entry.last]
        assert bounds == sorted(bounds)
        if all(unit is None or set(unit) - {RELATION} for unit in units):
            assert (entry.first, entry.last) == (positions[0], positions[-1])


@given(st.lists(st.sampled_from([0, 1, 2, 3]), max_size=12), st.integers(0, 6))
def test_messages_about_transactions_that_were_not_sent_are_ignored(
    places: list[int], cut: int
) -> None:
    """GIVEN Stream Aborts, Commit and Rollback Prepareds that nobody asked for WHEN they are
    among the messages THEN the entries are as without them, and all that precedes is covered."""
    strays = [b"A" + bytes(8), b"K" + bytes(30), b"r" + bytes(40), b"A" + bytes(24)]
    plain = [*transaction(100, RELATION, INSERT), *transaction(200, INSERT)]
    plain = plain[: len(plain) - cut]
    mixed: list[bytes] = []
    for number, message in enumerate(plain):
        mixed += [strays[place] for place in places if place == number % 4]
        mixed.append(message)
    mixed += [strays[place] for place in places]
    expected, covered = take(assembler(), plain)
    entries, covered_mixed = take(assembler(), mixed)
    assert raw(entries) == raw(expected)
    left = [message for message in mixed[covered_mixed:] if message not in strays]
    assert left == plain[covered:]
