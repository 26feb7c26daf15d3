"""Two looks at the catalogs, compared without a server; and the record of findings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from tailrace import config
from tailrace.observe.figures import SlotFigures
from tailrace.observe.metrics import exposition
from tailrace.run.document import status_document
from tailrace.run.overview import Overview
from tailrace.schemas.drift import record
from tailrace.schemas.drift.compare import BACKFILLED, KINDS, Sent, compare
from tailrace.schemas.drift.facts import ADAPTER, Column, Facts, Leaf, Table
from tailrace.schemas.drift.record import Findings, Found

if TYPE_CHECKING:
    from pathlib import Path

COLUMN = Column(
    number=1, name="n", kind=23, type_name="integer", modifier=-1, missing=False, default=0,
    stamp=700,
)  # fmt: skip
LEAF = Leaf(
    oid=16400, name="public.t", file=16400, tablespace=0, toast=16404, counted=True, stamp=700,
    created=700, attached=None,
)  # fmt: skip
TABLE = Table(
    oid=16400, namespace="public", name="t", published=True, logged=True, row_filter=None,
    last_number=1, columns=(COLUMN,), leaves=(LEAF,),
)  # fmt: skip
VACUUMED = {"file": 17000, "stamp": 800}
ALTERED = VACUUMED | {"toast": 17004}


def facts(*tables: Table) -> Facts:
    return Facts(source="1/shop", lsn="0/10", tables=tables)


def kinds(new: Table, old: Table = TABLE, sent: Sent | None = None) -> list[str]:
    found = compare(facts(old), facts(new), sent or Sent())
    assert all(finding.kind in KINDS for finding in found)
    return [finding.kind for finding in found]


def with_leaf(**changes: Any) -> Table:
    return replace(TABLE, leaves=(replace(LEAF, **changes),))


def with_column(table: Table = TABLE, **changes: Any) -> Table:
    return replace(table, columns=(replace(COLUMN, **changes),))


def test_nothing_happened() -> None:
    assert kinds(TABLE) == []


def test_a_new_file_alone_is_no_finding() -> None:
    assert kinds(with_leaf(**VACUUMED)) == []
    assert kinds(with_leaf(**ALTERED)) == []


def test_a_file_whose_rows_nobody_counted_was_truncated() -> None:
    emptied = with_leaf(file=17000, counted=False)
    assert kinds(emptied) == ["table-truncated"]
    assert kinds(emptied, sent=Sent(truncated={TABLE.oid: frozenset({800})})) == []
    assert kinds(with_leaf(file=17000, counted=False, tablespace=3)) == []


def test_missing_values_that_vacuum_full_wrote_out() -> None:
    old = with_column(missing=True)
    assert kinds(with_column(with_leaf(**VACUUMED), stamp=800), old) == []
    assert kinds(with_column(with_leaf(**VACUUMED), stamp=800)) == ["column-rewritten"]
    assert kinds(with_column(with_leaf(**ALTERED), stamp=800), old) == ["column-rewritten"]
    new_default = with_column(with_leaf(**VACUUMED), stamp=800, default=5)
    assert kinds(new_default, old) == ["column-rewritten"]


def test_a_column_touched_in_another_transaction_than_the_rewrite() -> None:
    assert kinds(with_column(with_leaf(**VACUUMED), stamp=799)) == []
    # VACUUM FULL came after ALTER TABLE.
    assert kinds(with_column(with_leaf(**ALTERED), stamp=799)) == ["column-rewritten"]


def test_a_partition_that_was_made_and_truncated_between_two_looks() -> None:
    one = replace(LEAF, oid=1, file=1, attached=700, name="public.p1")
    new = replace(one, oid=2, file=9, counted=False, name="public.p2")
    told = Sent(stated=frozenset({2}))
    old, now = replace(TABLE, leaves=(one,)), replace(TABLE, leaves=(one, new))
    assert kinds(now, old, told) == ["partition-truncated"]


def test_a_type_without_a_rewrite_matters_if_the_same_bytes_read_differently() -> None:
    text = replace(TABLE, columns=(replace(COLUMN, kind=25),))
    assert kinds(replace(TABLE, columns=(replace(COLUMN, kind=1043, modifier=9),)), text) == []
    stamps = replace(TABLE, columns=(replace(COLUMN, kind=1114),))
    assert kinds(with_column(kind=1184), stamps) == ["column-retyped"]


def test_partitions() -> None:
    one = replace(LEAF, oid=1, attached=700, name="public.p1")
    two = replace(LEAF, oid=2, file=2, attached=700, name="public.p2", created=700)
    old, new = replace(TABLE, leaves=(one,)), replace(TABLE, leaves=(one, two))
    assert kinds(old, new) == ["partition-detached"]
    assert kinds(new, old) == ["partition-attached"]
    told = Sent(stated=frozenset({2}))
    assert kinds(new, old, told) == []
    later = replace(TABLE, leaves=(one, replace(two, attached=701)))
    assert kinds(later, old, told) == ["partition-attached"]
    emptied = replace(TABLE, leaves=(replace(one, file=5, counted=False),))
    assert kinds(emptied, old) == ["partition-truncated"]
    assert kinds(emptied, old, Sent(truncated={TABLE.oid: frozenset({800})})) == []


def test_a_leaf_truncated_once_more_after_the_root() -> None:
    one = replace(LEAF, oid=1, attached=700, name="public.p1")
    two = replace(LEAF, oid=2, attached=700, name="public.p2")
    old = replace(TABLE, leaves=(one, two))
    empty: dict[str, Any] = {"file": 5, "counted": False}

    def found(stamp_of_one: int, stamp_of_two: int) -> list[str]:
        leaves = (
            replace(one, **empty, stamp=stamp_of_one),
            replace(two, **empty, stamp=stamp_of_two),
        )
        sent = Sent(truncated={TABLE.oid: frozenset({800})})
        new = replace(TABLE, leaves=leaves)
        return [finding.subject for finding in compare(facts(old), facts(new), sent)]

    assert found(800, 800) == []
    assert found(800, 801) == ["public.p2"]
    assert found(805, 805) == []
    assert found(803, 801) == ["public.p1", "public.p2"]


def test_a_table_that_is_not_published_is_of_no_concern_until_it_returns() -> None:
    hidden = replace(TABLE, published=False)
    assert kinds(replace(with_leaf(**ALTERED), published=False), hidden) == []
    assert compare(facts(hidden), facts()) == []
    assert kinds(TABLE, hidden) == ["table-returned"]
    [left] = compare(facts(TABLE), facts(replace(hidden, logged=False)))
    assert (left.kind, left.detail) == ("table-left", "it is unlogged now")


def test_sending_rows_again_removes_none() -> None:
    assert KINDS.keys() - BACKFILLED == {
        "partition-detached",
        "partition-truncated",
        "table-truncated",
        "table-dropped",
        "table-left",
    }


columns = st.builds(
    Column, number=st.integers(1, 4), name=st.text(max_size=3),
    kind=st.sampled_from([23, 25, 1043]),
    type_name=st.text(max_size=3), modifier=st.integers(-1, 5), missing=st.booleans(),
    default=st.integers(0, 2), stamp=st.integers(700, 703),
)  # fmt: skip
leaves = st.builds(
    Leaf, oid=st.integers(1, 4), name=st.text(max_size=3), file=st.integers(1, 4),
    tablespace=st.integers(0, 1), toast=st.integers(0, 2), counted=st.booleans(),
    stamp=st.integers(700, 703), created=st.integers(700, 703),
    attached=st.none() | st.integers(700, 703),
)  # fmt: skip
tables = st.builds(
    Table, oid=st.integers(1, 4), namespace=st.just("public"), name=st.text(max_size=3),
    published=st.booleans(), logged=st.booleans(), row_filter=st.none() | st.text(max_size=3),
    last_number=st.integers(0, 4),
    columns=st.lists(columns, max_size=3, unique_by=lambda each: each.number).map(tuple),
    leaves=st.lists(leaves, max_size=3, unique_by=lambda each: each.oid).map(tuple),
)  # fmt: skip
looks = st.builds(
    Facts, source=st.just("1/shop"), lsn=st.just("0/10"), position=st.just(""),
    tables=st.lists(tables, max_size=4, unique_by=lambda each: each.oid).map(tuple),
)  # fmt: skip


@given(before=looks, after=looks)
def test_any_two_looks_can_be_compared(before: Facts, after: Facts) -> None:
    found = compare(before, after)
    assert all(finding.kind in KINDS for finding in found)
    assert compare(before, before) == []
    assert ADAPTER.validate_json(ADAPTER.dump_json(before)) == before


def found(number: int, *waiting: str) -> Found:
    return Found(
        id=str(number), kind="column-default", namespace="public", table="t", relation_id=1,
        subject="d", detail="", hint="", lsn="0/10", found_at="2026-01-01T00:00:00+00:00",
        pipelines={"one": "flag"}, waiting=list(waiting),
    )  # fmt: skip


def test_a_finding_counts_once_and_what_waits_is_kept(tmp_path: Path) -> None:
    findings = Findings()
    assert len(findings.add([found(0, "one"), found(0, "one")][:1])) == 1
    assert findings.add([found(0, "one")]) == []
    findings.add(found(number) for number in range(1, 150))
    assert findings.counts == {"one": {"column-default": 150}}
    assert [each.id for each in findings.found[:2]] == ["0", "50"]
    record.save(tmp_path, findings)
    assert record.load(tmp_path) == findings
    assert record.load(tmp_path / "elsewhere") == Findings()


def test_status_and_metrics_show_findings(tmp_path: Path) -> None:
    findings = Findings()
    findings.add([found(1, "one")])
    record.save(tmp_path, findings)
    settings = config.Config.model_validate({"data": tmp_path, "log": {"path": tmp_path / "log"}})
    overview = Overview(settings, SlotFigures)
    [shown] = status_document(overview.read(), settings)["schema_findings"]
    assert (shown["table"], shown["kind"]) == ("public.t", "column-default")
    assert shown["waiting"] == ("one",)
    body, _ = exposition(overview.read)
    assert b'tailrace_schema_findings_total{kind="column-default",pipeline="one"} 1.0' in body
