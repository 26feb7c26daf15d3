"""Columns against messages: both decoders must tell the same story."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.change import UNCHANGED, Op, Row
from tailrace.decode import rows as row_images
from tailrace.decode.decoder import Decoder
from tailrace.errors import MalformedError
from tailrace.log.changes import Decoder as Oracle
from tailrace.log.format.entry import Entry, Kind, pack
from tailrace.position import Lsn, Position
from tailrace.schema import Column, Relation, ReplicaIdentity
from tailrace.wire import pgoutput
from tailrace.wire.pgtime import PgTime
from tests.chance import examples, seeds
from tests.columns import columnar, plain
from tests.fix_log import TIME, Session, Workload, fragment_entries, whole_entry

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True, scope="module", params=[0, row_images.FEW])
def few(request: pytest.FixtureRequest) -> Iterator[None]:
    """With rows read one by one, as few as tests have, and with numpy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_images, "FEW", request.param)
        yield


def entry_of(messages: list[bytes], **fields: object) -> Entry:
    offsets, body = pack(messages)
    made = Entry(
        kind=Kind.TRANSACTIONS,
        first=Position(Lsn(0x100)),
        last=Position(Lsn(0x100), 1000),
        end_lsn=Lsn(0x200),
        first_time=TIME,
        last_time=TIME,
        offsets=offsets,
        body=body,
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def table(*keys: bool, identity: ReplicaIdentity = ReplicaIdentity.DEFAULT) -> Relation:
    columns = tuple(
        Column(name=f"c{number}", type_oid=25, key=key) for number, key in enumerate(keys)
    )
    return Relation(oid=1, namespace="s", name="t", replica_identity=identity, columns=columns)


def transaction(relation: Relation, *rows: pgoutput.AnyMessage, lsn: int = 0x100) -> list[bytes]:
    begin = pgoutput.Begin(final_lsn=Lsn(lsn), committed_at=PgTime(TIME), xid=7)
    commit = pgoutput.Commit(commit_lsn=Lsn(lsn), end_lsn=Lsn(lsn + 8), committed_at=PgTime(TIME))
    return [pgoutput.write(message) for message in (begin, relation, *rows, commit)]


def agree(entries: list[Entry]) -> None:
    expected = plain(Oracle().decode(entries))
    assert columnar(entries) == expected
    for target_bytes in (1, 300, 1 << 20):
        assert columnar(entries, target_bytes=target_bytes) == expected


@pytest.mark.parametrize("seed", seeds(40, short=10))
def test_random_streams(seed: int) -> None:
    rng = random.Random(seed)
    workload, session = Workload(rng), Session()
    entries: list[Entry] = []
    end_lsn, time, last = Lsn(0x100), TIME, Position(Lsn(0x100))
    for _ in range(30):
        if rng.random() < 0.3:
            unit = workload.unit(steps=rng.randrange(1, 12))
            cuts = [rng.randrange(1, 20) for _ in range(rng.randrange(4))]
            entries += fragment_entries(unit, session, cuts, end_lsn, last)
        else:
            units = [workload.unit() for _ in range(rng.randrange(1, 6))]
            entries.append(whole_entry(units, session, end_lsn, time))
        end_lsn, time, last = entries[-1].end_lsn, entries[-1].last_time, entries[-1].last
    agree(entries)


values = st.none() | st.just(UNCHANGED) | st.binary(max_size=20)


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    keys = draw(st.lists(st.booleans(), min_size=0, max_size=5))
    relation = table(*keys, identity=draw(st.sampled_from(ReplicaIdentity)))
    row = st.tuples(*(values for _ in keys))
    old = st.builds(pgoutput.OldKey, row) | st.builds(pgoutput.OldRow, row)
    change = (
        st.builds(pgoutput.Insert, oid=st.just(1), new=row)
        | st.builds(pgoutput.Update, oid=st.just(1), old=st.none() | old, new=row)
        | st.builds(pgoutput.Delete, oid=st.just(1), old=old)
        | st.builds(
            pgoutput.Message,
            transactional=st.just(True),
            lsn=st.just(Lsn(5)),
            prefix=st.text("ab\u00e9 ", max_size=4),
            content=st.binary(max_size=9),
        )
    )
    return transaction(relation, *draw(st.lists(change, max_size=12)))


@given(streams())
@settings(max_examples=examples(2))
def test_any_row_of_any_states(messages: list[bytes]) -> None:
    agree([entry_of(messages)])


def test_relation_that_changes_between_rows() -> None:
    narrow, wide = table(True), table(True, False)
    agree(
        [
            entry_of(
                transaction(narrow, pgoutput.Insert(oid=1, new=(b"1",)))
                + transaction(wide, pgoutput.Insert(oid=1, new=(b"2", None)), lsn=0x110)
                + transaction(narrow, pgoutput.Insert(oid=1, new=(b"3",)), lsn=0x120)
            )
        ]
    )


def test_range_inside_an_entry() -> None:
    rows = [pgoutput.Insert(oid=1, new=(str(n).encode(),)) for n in range(6)]
    entry = entry_of(transaction(table(True), *rows), first=Position(Lsn(0x100)))
    found = columnar([entry], Position(Lsn(0x100), 1), Position(Lsn(0x100), 4))
    assert [change.position.ordinal for change in found] == [2, 3, 4]


def test_tables_left_out_still_count() -> None:
    other = replace(table(True), oid=2, name="u")
    messages = transaction(
        table(True),
        pgoutput.Insert(oid=1, new=(b"1",)),
        other,
        pgoutput.Insert(oid=2, new=(b"2",)),
        pgoutput.Insert(oid=1, new=(b"3",)),
    )
    decoder = Decoder(wanted=lambda relation: relation.name == "t")
    groups = decoder.decode(entry_of(messages))
    assert [group.ordinal.tolist() for group in groups] == [[0, 2]]


def annotate(text: str) -> pgoutput.Message:
    return pgoutput.Message(
        transactional=True,
        lsn=Lsn(1),
        prefix="sequin:transaction_annotations.set",
        content=text.encode(),
    )


FORGET = pgoutput.Message(
    transactional=True, lsn=Lsn(1), prefix="sequin:transaction_annotations.clear", content=b""
)


def annotated(entries: list[Entry]) -> list[str | None]:
    decoder = Decoder(messages=lambda _: False)
    found: list[str | None] = []
    for entry in entries:
        for group in decoder.decode(entry):
            texts = group.annotations
            found += [None] * len(group) if texts is None else texts.to_pylist()
    return found


def insert(number: int) -> pgoutput.Insert:
    row: Row = (str(number).encode(),)
    return pgoutput.Insert(oid=1, new=row)


def test_annotations_hold_from_set_to_clear_and_never_beyond_their_transaction() -> None:
    relation = table(True)
    messages = transaction(
        relation, insert(0), annotate('{"a": 1}'), insert(1), insert(2), FORGET, insert(3),
        annotate("plain"), insert(4),
    ) + transaction(relation, insert(5), lsn=0x110)  # fmt: skip
    assert annotated([entry_of(messages)]) == [
        None, '{"a": 1}', '{"a": 1}', None, '"plain"', None,
    ]  # fmt: skip


def test_annotations_go_on_in_the_next_piece_of_their_transaction() -> None:
    messages = transaction(table(True), annotate("{}"), insert(0), insert(1), insert(2))
    first = entry_of(messages[:4], kind=Kind.FRAGMENT, xid=7, ends=False)
    start = Position(Lsn(0x100), 2)
    second = entry_of(messages[4:], kind=Kind.FRAGMENT, xid=7, begins=False, first=start)
    assert annotated([first, second]) == ["{}"] * 3
    # The opening entry of a new segment may come between them.
    opening = entry_of(messages[1:2], kind=Kind.SCHEMA, first=start, last=start, ends=False)
    assert annotated([first, opening, second]) == ["{}"] * 3
    # A piece that is read alone does not know what came before it.
    other = replace(second, first=Position(Lsn(0x900)), last=Position(Lsn(0x900), 9))
    decoder = Decoder()
    decoder.decode(first)
    assert decoder.decode(other)[0].annotations is None


@pytest.mark.parametrize("op", [Op.INSERT, Op.UPDATE, Op.DELETE])
def test_rows_cut_anywhere_are_malformed(op: Op) -> None:
    relation = table(True, False)
    row = (b"key", b"value")
    messages: dict[Op, pgoutput.AnyMessage] = {
        Op.INSERT: pgoutput.Insert(oid=1, new=row),
        Op.UPDATE: pgoutput.Update(oid=1, old=pgoutput.OldRow(row), new=row),
        Op.DELETE: pgoutput.Delete(oid=1, old=pgoutput.OldKey(row)),
    }
    raw = pgoutput.write(messages[op])
    head = [pgoutput.write(relation)]
    for size in range(1, len(raw)):
        for following in ([], [raw]):
            entry = entry_of([*head, raw[:size], *following])
            with pytest.raises(MalformedError):
                Decoder().decode(entry)


def test_lengths_that_overflow_are_malformed() -> None:
    raw = bytearray(pgoutput.write(insert(1)))
    for length in (b"\xff\xff\xff\xff", b"\x80\x00\x00\x00", b"\x7f\xff\xff\xff"):
        raw[9:13] = length
        with pytest.raises(MalformedError):
            Decoder().decode(entry_of([pgoutput.write(table(True)), bytes(raw)]))


def test_unknown_relation_is_malformed() -> None:
    with pytest.raises(MalformedError, match="unknown relation"):
        Decoder().decode(entry_of([pgoutput.write(insert(1))]))


def test_binary_values_are_malformed() -> None:
    raw = pgoutput.write(insert(1)).replace(b"t", b"b")
    with pytest.raises(MalformedError, match="binary"):
        Decoder().decode(entry_of([pgoutput.write(table(True)), raw]))


def test_groups_hold_no_python_objects_per_row() -> None:
    rows = [insert(number) for number in range(1000)]
    (group,) = Decoder().decode(entry_of(transaction(table(True), *rows)))
    assert group.lsn.dtype == np.uint64
    assert len(group) == 1000
