"""Names resolved against a table; fingerprints of versions and their combination."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ExpressionError
from tailrace.pipeline.expressions.cells import Decimal, spark_type
from tailrace.pipeline.expressions.compile import combine, compile, fingerprint  # noqa: A004
from tailrace.pipeline.expressions.sql import string
from tailrace.schema import ReplicaIdentity, TypeName
from tests.unit.pipeline.expressions.cells import TABLE, column, expressions, numeric

WITHOUT_OP = replace(TABLE, columns=TABLE.columns[:-1])


def refused(text: str, relation: object = TABLE) -> str:
    with pytest.raises(ExpressionError) as caught:
        compile(expressions(where=text), relation, {})  # type: ignore[arg-type]
    return str(caught.value)


def test_an_unknown_column_is_named_with_its_table_and_a_suggestion() -> None:
    message = refused("id = 1 AND\n  nmae = 'x'")
    assert message.endswith(
        "line 2, column 3: public.orders has no column nmae, did you mean name?"
    )
    assert "has no column zzz" in refused("after.zzz = 1")
    assert "has no column lsn" in refused("after.lsn = 1")
    assert "a change has no field colour" in refused("change.colour = 1")
    assert "is not a column of the table" in refused("is_unchanged(change.op)")
    assert "is not a column of the table" in refused("text(lsn) = '1'")


@pytest.mark.parametrize("qualifier", ["after", "before", "row"])
def test_a_field_of_the_change_is_not_suggested_by_the_same_name(qualifier: str) -> None:
    message = refused(f"{qualifier}.op = 'insert'", WITHOUT_OP)
    assert message.endswith(
        f'public.orders has no column op, op without "{qualifier}." is a field of the change'
    )
    assert "did you mean table" not in refused(f"{qualifier}.tabel = 'x'", WITHOUT_OP)
    assert "did you mean table?" in refused("tabel = 'x'", WITHOUT_OP)


def test_case_matters_only_in_backticks() -> None:
    mixed = replace(TABLE, columns=(*TABLE.columns, column("Name", 25), column("Solo", 25)))
    assert compile(expressions(where="SOLO = solo"), mixed, {}).where
    assert "several columns that match NAME without case" in refused("NAME = 'x'", mixed)
    compiled = compile(expressions(where="`Name` = 'x'"), mixed, {}).where
    assert compiled is not None
    assert "get(after, 12)" in compiled
    assert "has no column solo" in refused("`solo` = 'x'", mixed)
    assert "did you mean Solo" in refused("`solo` = 'x'", mixed)


def test_a_name_of_a_column_and_of_a_field_must_be_qualified() -> None:
    """GIVEN a table with a column op WHEN an expression says op THEN it is refused."""
    reason = "op is a column of public.orders and a field of the change: "
    for text in ("op = 'x'", "`op` = 'x'", "is_unchanged(op)", "text(op) = 'x'"):
        assert reason + "write after.op or change.op" in refused(text)
    assert "write after.OP or change.OP" in refused("OP = 'x'")
    with pytest.raises(ExpressionError, match=r"write row\.op or change\.op"):
        compile(expressions(select=("id", "op")), TABLE, {})
    folded = replace(TABLE, columns=(*WITHOUT_OP.columns, column("Table", 25)))
    assert "table is a column of public.orders and a field of the change" in refused(
        "table = 'x'", folded
    )


def test_qualified_names_choose_the_column_or_the_field() -> None:
    for text in ("row.op = 'x'", "after.op = 'x'"):
        compiled = compile(expressions(where=text), TABLE, {}).where
        assert compiled is not None
        assert "get(after, 11)" in compiled
    deleted = compile(expressions(where="row.op = 'x'"), TABLE, {}).where
    assert deleted is not None
    assert "get(before, 11)" in deleted
    for relation in (TABLE, WITHOUT_OP):
        field = compile(expressions(where="change.op = 'x'"), relation, {}).where
        assert field == "(`op` = 'x')"
    assert compile(expressions(where="op = 'x'"), WITHOUT_OP, {}).where == "(`op` = 'x')"
    selected = compile(expressions(select=("row.op", "change.op AS what")), TABLE, {}).selected
    assert selected is not None
    assert selected.columns == (column("op", 25), column("what", 0))


def test_a_message_has_the_frames_fields_and_no_columns() -> None:
    where = "op = 'message' AND name IS NULL AND row.op IS NULL"
    compiled = compile(expressions(where=where, select=("id",)), None, {})
    null = "CASE WHEN op IS NULL THEN NULL END"
    assert compiled.where == f"((`op` = 'message') AND ({null} IS NULL) AND ({null} IS NULL))"
    assert compiled.select is None


@pytest.mark.parametrize(
    ("group", "reason"),
    [
        ("name", "line 1, column 1: public.orders.name is not in the replica identity"),
        ("concat(id, ' ', day)", "column 17: public.orders.day is not in the replica identity"),
        ("coalesce(after.id, before.id)", "column 10: group applies to the old and to the new row"),
        ("change.op", "column 1: op is not a column of the table"),
        ("nope", "public.orders has no column nope"),
        ("customer.id", "customer"),
    ],
)
def test_a_group_must_be_known_of_every_old_row(group: str, reason: str) -> None:
    with pytest.raises(ExpressionError) as refused:
        compile(expressions(group=group), TABLE, {})
    assert reason in str(refused.value)
    compile(expressions(group="id % 10"), TABLE, {})


def test_selected_relation_keeps_plain_columns() -> None:
    compiled = compile(expressions(select=("id AS nr", "total", "upper(name) AS shout")), TABLE, {})
    assert compiled.selected is not None
    assert compiled.selected.columns == (
        column("nr", 20, key=True),
        column("total", 1700, numeric(10, 2)),
        column("shout", 0),
    )
    with pytest.raises(ExpressionError, match="already used by an earlier item"):
        compile(expressions(select=("id", "ID AS x", "upper(name) AS id")), TABLE, {})


@pytest.mark.parametrize(
    ("modifier", "expected"),
    [
        (-1, Decimal(38, 20, exact=False)),
        (numeric(10, 2), Decimal(10, 2, exact=True)),
        (numeric(38, 38), Decimal(38, 38, exact=True)),
        (numeric(5, -2), Decimal(7, 0, exact=True)),
        (numeric(3, 5), Decimal(5, 5, exact=True)),
        (numeric(78, 0), Decimal(38, 0, exact=True)),
        (numeric(40, 2), Decimal(38, 2, exact=True)),
        (numeric(60, 30), Decimal(38, 20, exact=False)),
    ],
)
def test_decimals_of_type_modifiers(modifier: int, expected: Decimal) -> None:
    assert Decimal.of(modifier) == expected


def test_other_types_are_strings() -> None:
    for oid in (25, 114, 3802, 1007, 2950, 1186, 3904, 99_999):
        assert spark_type(column("x", oid)) == "STRING"


def test_every_version_has_its_own_fingerprint() -> None:
    status = TypeName(oid=70_000, namespace="public", name="status")
    typed = replace(TABLE, columns=(*TABLE.columns, column("status", 70_000)))
    versions = [
        (TABLE, {}),
        (replace(TABLE, oid=1), {}),
        (replace(TABLE, name="other"), {}),
        (replace(TABLE, namespace="other"), {}),
        (replace(TABLE, replica_identity=ReplicaIdentity.FULL), {}),
        (replace(TABLE, columns=TABLE.columns[:-1]), {}),
        (replace(TABLE, columns=TABLE.columns[::-1]), {}),
        (replace(TABLE, columns=(column("id", 20), *TABLE.columns[1:])), {}),
        (replace(TABLE, columns=(column("id", 23, key=True), *TABLE.columns[1:])), {}),
        (replace(TABLE, columns=(column("id", 20, 7, key=True), *TABLE.columns[1:])), {}),
        (typed, {}),
        (typed, {70_000: status}),
        (typed, {70_000: replace(status, name="state")}),
    ]
    numbers = [fingerprint(relation, types) for relation, types in versions]
    assert len(set(numbers)) == len(numbers)
    assert all(0 < number < 2**63 for number in numbers)
    assert fingerprint(TABLE, {70_000: status}) == numbers[0]
    assert numbers[0] == 5_754_421_286_314_286_334, "checkpoints and plans hold these numbers"


def test_combine_chooses_by_relation() -> None:
    text = combine({7: "a", 8: "b"}, message="c")
    branches = ("relation IS NULL THEN c", "relation = 7L THEN a", "relation = 8L THEN b ELSE ")
    assert text.startswith("CASE WHEN " + " WHEN ".join(branches))
    assert "raise_error" in text


def test_combine_leaves_marks_alone() -> None:
    """Rows that say how far an open batch has come reach no expression of the user."""
    text = combine({7: "a"}, message="c", mark="d")
    assert text.startswith("CASE WHEN open_batch IS NOT NULL THEN d WHEN relation IS NULL THEN c")


@given(st.text())
def test_string_literals_cannot_be_escaped_from(value: str) -> None:
    if any(0xD800 <= ord(letter) < 0xE000 for letter in value):
        return
    written = string(value)
    assert "$" not in written
    assert "\\" not in written
    if written.startswith("CAST(X'"):
        assert bytes.fromhex(written[7:].split("'")[0]).decode() == value
    else:
        assert value in written
        assert "'" not in value
