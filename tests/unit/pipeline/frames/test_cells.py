"""The cells frame: rows out of the log, and groups out of rows again."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tailrace.change import ABSENT, UNCHANGED, Op
from tailrace.pipeline.expressions.compile import fingerprint
from tailrace.pipeline.frames.cells import SCHEMA, CellFrame, groups_of
from tailrace.pipeline.frames.frame import Slice, arrow_schema
from tailrace.pipeline.spec import Spec
from tests.fix_log import random_log

if TYPE_CHECKING:
    from tailrace.change import Change
    from tailrace.decode.group import Group, Image
    from tailrace.schema import Relation, TypeName
    from tests.fix_log import TestLog


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
