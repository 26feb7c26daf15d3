"""Names of tables and the statements about publications, without a server."""

from __future__ import annotations

import pytest

from tailrace.errors import ConfigError
from tailrace.postgres.names import TableName
from tailrace.postgres.publication import (
    PublicationState,
    addition_sql,
    publication_sql,
    removal_sql,
)

ORDERS = TableName("public", "orders")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("orders", ("public", "orders")),
        (" Sales.Orders ", ("sales", "orders")),
        ('"Sales"."Order.Items"', ("Sales", "Order.Items")),
        ('"a""b"', ("public", 'a"b')),
    ],
)
def test_names_are_read_as_in_sql(text: str, expected: tuple[str, str]) -> None:
    assert TableName.parse(text) == TableName(*expected)


@pytest.mark.parametrize("text", ["", "a.b.c", '"a', "a.", ".b", '""'])
def test_invalid_names_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="invalid table name"):
        TableName.parse(text)


def test_statements_quote_every_name() -> None:
    odd = TableName('od"d', "t; --")
    assert odd.quoted == '"od""d"."t; --"'
    assert publication_sql('p"', tables=[ORDERS, odd]) == (
        'CREATE PUBLICATION "p""" FOR TABLE "public"."orders", "od""d"."t; --" '
        "WITH (publish_via_partition_root = true)"
    )
    assert removal_sql("p", odd) == 'ALTER PUBLICATION "p" DROP TABLE "od""d"."t; --"'


def test_a_publication_for_all_tables() -> None:
    assert publication_sql("p", all_tables=True, via_root=False) == (
        'CREATE PUBLICATION "p" FOR ALL TABLES WITH (publish_via_partition_root = false)'
    )


@pytest.mark.parametrize("tables", [[], [ORDERS]])
def test_tables_and_all_tables_exclude_each_other(tables: list[TableName]) -> None:
    with pytest.raises(ConfigError, match="either tables or --all-tables"):
        publication_sql("p", tables=tables, all_tables=bool(tables))


@pytest.mark.parametrize(
    ("columns", "where", "expected"),
    [
        ((), "", ""),
        (("id", "No"), "", ' ("id", "No")'),
        ((), "id > 5", " WHERE (id > 5)"),
        (("id",), "id > 5", ' ("id") WHERE (id > 5)'),
    ],
)
def test_additions_with_columns_and_rows(
    columns: tuple[str, ...], where: str, expected: str
) -> None:
    statement = addition_sql("p", ORDERS, columns=columns, where=where)
    assert statement == f'ALTER PUBLICATION "p" ADD TABLE "public"."orders"{expected}'


def test_unpublished_operations_are_listed_in_order() -> None:
    state = PublicationState(
        name="p", all_tables=False, insert=True, update=False, delete=True, truncate=False,
        via_root=True, generated_columns=False, tables=(),
    )  # fmt: skip
    assert state.unpublished_operations == ("update", "truncate")
