"""The cells frame: rows out of the log, and groups out of rows again."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tailrace.change import ABSENT, UNCHANGED, Op
from tailrace.open_batch import OpenBatch
from tailrace.pipeline.expressions.compile import fingerprint
from tailrace.pipeline.follow import Following
from tailrace.pipeline.frames.cells import SCHEMA, CellFrame, OpenMark, changes_of, groups_of
from tailrace.pipeline.frames.frame import Slice, arrow_schema
from tailrace.pipeline.spec import Spec
from tailrace.position import Position
from tests.fix_log import TestLog, random_log, transaction

if TYPE_CHECKING:
    from tailrace.change import Change
    from tailrace.decode.group import Group, Image
    from tailrace.schema import Relation, TypeName


def rows_of(log: TestLog) -> pa.StructArray:
    reader = log.log()
    spec = Spec(name="p", messages=("*",))
    part = Slice(log=reader, after=reader.earliest(), upto=reader.end().position)
    batches = list(CellFrame(spec).batches(part))
    assert all(batch.schema == arrow_schema(SCHEMA) for batch in batches)
    return pa.Table.from_batches(batches).to_struct_array().combine_chunks()


def versions_of(log: TestLog) -> dict[int, tuple[Relation, dict[int, TypeName]]]:
    reader = log.log()
    stated = reader.relations(reader.earliest())
    return {fingerprint(found, types): (found, types) for _, found, types in stated}


def image_of(image: Image | None, row: int) -> tuple[object, ...] | None:
    if image is None:
        return None
    return tuple(
        ABSENT
        if cells is None
        else UNCHANGED
        if cells.unchanged is not None and cells.unchanged[row]
        else cells.values[row].as_py()
        for cells in image
    )


def facts_of_group(group: Group, row: int) -> tuple[object, ...]:
    return (
        group.op,
        group.relation and group.relation.qualified_name,
        image_of(group.before, row),
        image_of(group.after, row),
        None if group.prefixes is None else group.prefixes[row].as_py(),
        None if group.contents is None else group.contents[row].as_py(),
    )


def facts_of_change(change: Change) -> tuple[object, ...]:
    relation, message = change.relation, change.op is Op.MESSAGE
    return (
        change.op,
        relation and relation.qualified_name,
        change.before,
        change.after,
        change.prefix if message else None,
        change.content if message else None,
    )


@pytest.mark.parametrize("seed", range(10))
def test_groups_from_the_frame_are_the_changes_of_the_log(seed: int) -> None:
    log = random_log(random.Random(seed), entries=30)
    rows = rows_of(log)
    found = {}
    for group, numbers in groups_of(rows, versions_of(log)):
        for row, number in enumerate(numbers.tolist()):
            position = (int(group.lsn[row]), int(group.ordinal[row]))
            found[number] = (position, facts_of_group(group, row))
    expected = [
        ((int(change.position.lsn), change.position.ordinal), facts_of_change(change))
        for change in log.changes()
    ]
    assert [found[number] for number in range(len(rows))] == expected


BATCH = OpenBatch(7, Position.parse("0/10.2"))


def struct_of(*batches: pa.RecordBatch) -> pa.StructArray:
    return pa.Table.from_batches(batches).to_struct_array().combine_chunks()


@pytest.mark.parametrize("closed", [True, False])
def test_a_mark_says_how_far_an_open_batch_has_come(closed: bool) -> None:
    mark = OpenMark(BATCH, Position.parse("0/30.5"), closed)
    rows = mark.rows(1 << 16)
    assert rows.schema == arrow_schema(SCHEMA)
    assert OpenMark.of(struct_of(rows)) == mark
    assert len(changes_of(struct_of(rows))) == 0


def test_the_cell_that_moves_rows_on_is_the_last_buffer() -> None:
    """Nothing of the Arrow batch may stay behind in a buffer of the worker."""
    rows = OpenMark(BATCH, BATCH.after, closed=False).rows(1 << 16)
    assert rows.schema.names[-1] == "content"
    last = rows.column(rows.num_columns - 1).buffers()[-1]
    assert last is not None
    assert last.size == 1 << 16
    assert [len(cell.as_py()) for cell in rows["content"]] == [1 << 16, 0]


def test_rows_of_an_open_batch_and_its_marks() -> None:
    """A mark follows what the log has, says how far that is, and the last one closes the batch."""
    made = TestLog()
    log, ends = made.log(), False
    following = Following(
        log,
        log.earliest(),
        wanted=lambda _: True,
        messages=lambda _: True,
        max_rows=1000,
        max_s=1000,
        ends=lambda _: ends,
        clock=time.monotonic,
    )
    batches = CellFrame(Spec(name="p")).follow(following, BATCH, push_bytes=64)
    first = OpenMark.of(struct_of(next(batches)))
    assert first == OpenMark(BATCH, log.earliest(), closed=False)
    for number in range(3):
        made.append(transaction(number))
        rows = struct_of(next(batches))
        assert OpenMark.of(rows) is None
        assert changes_of(rows).field("lsn").to_pylist() == [int(transaction(number).lsn)] * 2
        reached = log.end().position
        assert OpenMark.of(struct_of(next(batches))) == OpenMark(BATCH, reached, closed=False)
    ends = True
    *_, last = batches
    assert OpenMark.of(struct_of(last)) == OpenMark(BATCH, reached, closed=True)
