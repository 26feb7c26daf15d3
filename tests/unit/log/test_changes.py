"""Changes out of entries: every kind of message, ordinals, origins, four value states."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.change import ABSENT, UNCHANGED, Change, Op
from tailrace.errors import MalformedError
from tailrace.log.changes import Decoder, read_changes
from tailrace.position import Lsn, Position
from tailrace.schema import ReplicaIdentity
from tailrace.wire.pgoutput import Insert, OldKey, OldRow, Update
from tests.fix_log import (
    MOOD,
    Session,
    Step,
    TestLog,
    Unit,
    all_changes,
    delete,
    insert,
    loose,
    message,
    relation,
    same,
    transaction,
    truncate,
    update,
    whole_entry,
)

TABLE = relation(1, version=1)


def decoded(*units: Unit, session: Session | None = None) -> list[Change]:
    entry = whole_entry(units, session or Session(), Lsn(0), 0)
    return list(Decoder().decode([entry]))


def test_every_operation() -> None:
    unit = transaction(
        0, insert(TABLE, 1), update(TABLE, 1), delete(TABLE, 2), message(5), truncate(TABLE)
    )
    found = decoded(unit)
    assert found == unit.changes()
    assert [change.op for change in found] == [
        Op.INSERT, Op.UPDATE, Op.DELETE, Op.MESSAGE, Op.TRUNCATE,
    ]  # fmt: skip


def test_a_truncate_of_n_tables_is_n_changes() -> None:
    unit = transaction(
        0, insert(TABLE, 1), truncate(TABLE, relation(2), relation(3)), insert(TABLE, 2)
    )
    found = decoded(unit)
    assert [change.position.ordinal for change in found] == [0, 1, 2, 3, 4]
    assert [change.relation.name for change in found[1:4] if change.relation] == ["t1", "t2", "t3"]


def test_a_non_transactional_message_is_one_byte_before_its_lsn() -> None:
    first, second = transaction(0), transaction(1)
    between = loose(second.lsn - 1)
    found = decoded(first, between, second)
    assert same(found, [*first.changes(), *between.changes(), *second.changes()])
    (said,) = [change for change in found if change.op is Op.MESSAGE]
    assert (said.xid, said.position) == (0, Position(Lsn(second.lsn - 1), 0))


def test_a_loose_message_has_no_part_in_the_ordinals_around_it() -> None:
    found = decoded(transaction(0), loose(transaction(0).lsn + 5), transaction(1))
    assert [change.position.ordinal for change in found] == [0, 1, 0, 0, 1]


def test_origins_hold_for_their_transaction_alone() -> None:
    found = decoded(transaction(0, origin="node_2"), transaction(1))
    assert [change.origin for change in found] == ["node_2", "node_2", "", ""]


@pytest.mark.parametrize("cut", range(1, 9))
def test_pieces_of_a_transaction_decode_as_the_whole(cut: int) -> None:
    unit = transaction(
        0, insert(TABLE, 1), truncate(TABLE, relation(2)), message(5), delete(TABLE, 1),
        origin="node_2",
    )  # fmt: skip
    made = TestLog()
    made.append_pieces(unit, cut)
    assert all_changes(made.store) == unit.changes()
    for change in unit.changes():
        rest = list(read_changes(made.log(), change.position))
        assert rest == unit.changes()[change.position.ordinal + 1 :]


def updated(old: OldKey | OldRow | None, new: tuple[bytes | None, ...]) -> Change:
    table = replace(TABLE, replica_identity=ReplicaIdentity.FULL)
    step = Step(message=Update(oid=1, old=old, new=new), needs=(table,))
    (found,) = decoded(transaction(0, step))
    return found


def test_a_large_value_the_old_row_holds_is_filled_in() -> None:
    row = (b"1", UNCHANGED, b"new")
    found = updated(OldRow((b"1", b"large", b"old")), row)  # type: ignore[arg-type]
    assert found.after == (b"1", b"large", b"new")
    assert found.before == (b"1", b"large", b"old")


def test_a_large_key_is_filled_in_and_the_rest_is_not() -> None:
    row = (UNCHANGED, UNCHANGED, b"new")
    found = updated(OldKey((b"1", None, None)), row)  # type: ignore[arg-type]
    assert found.after == (b"1", UNCHANGED, b"new")
    assert found.before == (b"1", ABSENT, ABSENT)


def test_null_and_unchanged_are_not_confused() -> None:
    found = updated(None, (b"1", None, UNCHANGED))  # type: ignore[arg-type]
    assert found.after == (b"1", None, UNCHANGED)
    assert found.before is None


def test_a_change_of_an_unknown_relation_is_malformed() -> None:
    with pytest.raises(MalformedError, match="a change of unknown relation 1"):
        decoded(transaction(0), session=Session(sent={1: relation(1)}))


@pytest.mark.parametrize(
    "step",
    [
        Step(message=Insert(oid=1, new=(b"1",)), needs=(TABLE,)),
        Step(message=Update(oid=1, old=None, new=(b"1",) * 4), needs=(TABLE,)),
        Step(message=Update(oid=1, old=OldRow((b"1",)), new=(b"1",) * 3), needs=(TABLE,)),
        Step(message=Update(oid=1, old=OldRow((b"1",)), new=(b"1", UNCHANGED)), needs=(TABLE,)),
        Step(message=Update(oid=1, old=OldKey((b"1",)), new=(b"1",) * 3), needs=(TABLE,)),
    ],
)
def test_rows_that_do_not_fit_their_relation_are_malformed(step: Step) -> None:
    with pytest.raises(MalformedError, match="columns"):
        decoded(transaction(0, step))


def test_the_decoder_knows_relations_and_types_afterwards() -> None:
    decoder = Decoder()
    entry = whole_entry([transaction(0, insert(TABLE, 1))], Session(), Lsn(0), 0)
    list(decoder.decode([entry]))
    assert decoder.relations == {1: TABLE}
    assert decoder.types == {MOOD.oid: MOOD}
