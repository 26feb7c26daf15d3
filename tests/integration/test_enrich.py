"""Lookups at the source: rows of a query beside the columns of a change."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.config import Config
from tailrace.errors import (
    ConfigError,
    ExpressionError,
    PostgresRefusedError,
    PostgresUnreachableError,
)
from tailrace.pipeline import enrich
from tailrace.pipeline.check import check
from tailrace.pipeline.expressions.expression import parse
from tailrace.postgres.lookup import LookupSession
from tailrace.testing import TcpProxy
from tests.unit.pipeline.expressions.cells import SINK

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fix_capture import Captured
    from tests.fix_pipeline import Delivery
    from tests.fix_postgres import Database

    Capturing = Callable[[Database], Captured]
    Delivering = Callable[..., Delivery]

CUSTOMERS = """
CREATE TABLE customers (id bigint PRIMARY KEY, name text, since timestamptz, credit numeric(8, 2));
INSERT INTO customers VALUES
  (1, 'ann "a" \\ b', '2024-01-01 00:00:00+00', 10.50), (2, NULL, NULL, 7);
CREATE TABLE orders (id bigint PRIMARY KEY, customer_id bigint, note text);
"""
QUERY = "SELECT id, name, since, credit FROM customers WHERE id = ANY($1)"
ENRICH = {"customer": {"query": QUERY, "key": "customer_id"}}


def rows_of(delivery: Delivery) -> list[dict[str, Any]]:
    progress = delivery.run()
    assert progress.state == "stopped", progress.message
    return [message.json for message in delivery.received()]


def test_expressions_read_the_rows_of_a_lookup(
    database: Database, capture: Capturing, deliver: Delivering
) -> None:
    """GIVEN a lookup by a column of the changed table THEN expressions read its columns with their
    types; a row that is not there, and a key that is NULL, are NULL."""
    database.execute(CUSTOMERS)
    captured = capture(database)
    database.execute(
        "INSERT INTO orders VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 3, 'c'), (4, NULL, 'd')"
    )
    captured.catch_up()
    delivery = deliver(
        captured,
        tables=["public.orders"],
        enrich=ENRICH,
        where="customer.credit IS NULL OR customer.credit > 8",
        select=[
            "id",
            "customer.name AS name",
            "customer.credit * 2 AS twice",
            "year(customer.since) AS year",
            "struct(customer.id, text(customer.credit) AS credit) AS customer",
        ],
        headers={"Customer": "customer.id"},
        shape="plain",
    )
    delivery.source = {"dsn": database.dsn}
    assert [row["after"] for row in rows_of(delivery)] == [
        {
            "id": 1,
            "name": 'ann "a" \\ b',
            "twice": "21.00",
            "year": 2024,
            "customer": {"id": 1, "credit": "10.50"},
        },
        {
            "id": 3,
            "name": None,
            "twice": None,
            "year": None,
            "customer": {"id": None, "credit": None},
        },
        {
            "id": 4,
            "name": None,
            "twice": None,
            "year": None,
            "customer": {"id": None, "credit": None},
        },
    ]
    assert [message.headers.get("Customer") for message in delivery.received()] == ["1", None, None]


@pytest.mark.parametrize("identity", ["FULL", "DEFAULT"])
def test_the_key_of_a_deleted_row(
    database: Database, capture: Capturing, deliver: Delivering, identity: str
) -> None:
    """GIVEN a delete THEN its old row gives the key; without it the value is absent, never NULL."""
    database.execute(f"{CUSTOMERS}; ALTER TABLE orders REPLICA IDENTITY {identity}")
    captured = capture(database)
    database.execute("INSERT INTO orders VALUES (1, 1, 'a')")
    database.execute("UPDATE orders SET note = 'b'")
    database.execute("DELETE FROM orders")
    captured.catch_up()
    delivery = deliver(
        captured,
        tables=["public.orders"],
        enrich=ENRICH,
        select=["id", "customer.credit AS credit"],
        shape="plain",
    )
    delivery.source = {"dsn": database.dsn}
    inserted, updated, deleted = rows_of(delivery)
    assert inserted["after"] == updated["after"] == {"id": 1, "credit": "10.50"}
    old = {"id": 1, "credit": "10.50"} if identity == "FULL" else {"id": 1}
    assert deleted["before"] == old


def test_a_condition_that_needs_the_key_of_a_deleted_row_stops(
    database: Database, capture: Capturing, deliver: Delivering
) -> None:
    database.execute(CUSTOMERS)
    captured = capture(database)
    database.execute("INSERT INTO orders VALUES (1, 1, 'a')")
    database.execute("DELETE FROM orders")
    captured.catch_up()
    delivery = deliver(
        captured, tables=["public.orders"], enrich=ENRICH, where="customer.credit > 1"
    )
    delivery.source = {"dsn": database.dsn}
    progress = delivery.run()
    assert (progress.state, progress.code) == ("failed", "POISONED")
    assert "customer_id was not sent, which is the key of the lookup customer" in progress.message


def test_a_lookup_that_fails_stops_the_pipeline_and_skips_nothing(
    database: Database, capture: Capturing, deliver: Delivering
) -> None:
    """GIVEN a view that PostgreSQL cannot compute for a while THEN nothing is lost or skipped."""
    database.execute(CUSTOMERS)
    database.execute(
        "CREATE TABLE gate (closed int PRIMARY KEY); INSERT INTO gate VALUES (0); "
        "CREATE VIEW gated AS SELECT id, name, 1 / closed AS one FROM customers, gate"
    )
    captured = capture(database)
    database.execute("INSERT INTO orders VALUES (1, 1, 'a')")
    captured.catch_up()
    delivery = deliver(
        captured,
        tables=["public.orders"],
        enrich={
            "customer": {"query": "SELECT * FROM gated WHERE id = ANY($1)", "key": "customer_id"}
        },
        where="customer.one = 1",
    )
    delivery.source = {"dsn": database.dsn}
    failed = delivery.run()
    assert failed.state == "failed"
    assert "division by zero" in failed.message
    database.execute("UPDATE gate SET closed = 1")
    assert len(rows_of(delivery)) == 1


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT id, name FROM customers", "must be a SELECT with the one parameter"),
        (
            "SELECT id FROM customers WHERE id = ANY($1) AND id > $2",
            "must be a SELECT with the one",
        ),
        ("DELETE FROM customers WHERE id = ANY($1)", "must be a SELECT with the one parameter"),
        ("SELECT id FROM customer WHERE id = ANY($1)", 'relation "customer" does not exist'),
    ],
)
def test_a_query_that_cannot_be_a_lookup_is_refused(
    database: Database, query: str, reason: str
) -> None:
    database.execute(CUSTOMERS)
    settings = config(database, {"customer": {"query": query, "key": "customer_id"}})
    made = parse(settings.pipelines["p"], name="p")
    with pytest.raises((ConfigError, PostgresRefusedError), match=reason):
        enrich.with_columns(made, database.dsn)
    found = [each for each in check(settings, spark=False).findings if each.check == "expression"]
    assert reason in found[0].finding


def test_a_lookup_cannot_write(database: Database) -> None:
    database.execute(CUSTOMERS)
    session = LookupSession(database.dsn, timeout_s=10)
    with pytest.raises(PostgresRefusedError, match="read-only"):
        session.rows("DELETE FROM customers WHERE id = ANY($1) RETURNING id", [b"1"])
    assert session.rows("SELECT id FROM customers WHERE id = ANY($1)", [b"1"]) == [(b"1",)]
    session.close()


def test_a_slow_lookup_is_cut_off(database: Database) -> None:
    session = LookupSession(database.dsn, timeout_s=0.1)
    with pytest.raises(PostgresUnreachableError, match="statement timeout"):
        session.rows("SELECT pg_sleep(60), $1::int[]", [b"1"])
    session.close()


def test_a_session_that_was_ended_is_opened_again(database: Database) -> None:
    database.execute(CUSTOMERS)
    session = LookupSession(database.dsn, timeout_s=10)
    query = "SELECT id FROM customers WHERE id = ANY($1)"
    assert session.rows(query, [b"1"])
    database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = 'tailrace-lookup'"
    )
    with pytest.raises(Exception, match=r"terminat"):
        session.rows(query, [b"1"])
    assert session.rows(query, [b"1"])
    session.close()


def test_a_server_that_hangs_is_unreachable(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a server behind a proxy that takes requests and answers nothing."""
    monkeypatch.setattr("tailrace.postgres.lookup._GRACE_S", 0.1)
    with TcpProxy("127.0.0.1", database.server.port) as proxy:
        dsn = f"host=127.0.0.1 port={proxy.port} user=postgres dbname={database.name}"
        session = LookupSession(dsn, timeout_s=0.2)
        query = "SELECT $1::int[]"
        assert session.rows(query, [b"1"]) == [(b"{1}",)]
        proxy.mute(re.compile(b"SELECT"))
        with pytest.raises(PostgresUnreachableError, match=r"no answer within 0\.3 s"):
            session.rows(query, [b"1"])
        session.close()


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("customer.nam = 'x'", "the lookup customer has no column nam, did you mean name?"),
        ("client.name = 'x'", "unknown qualifier client: write before., after., row., customer."),
        ("customer.since + 1 > 0", "Spark refuses it for public.orders"),
    ],
)
def test_unknown_names_are_refused(database: Database, expression: str, reason: str) -> None:
    database.execute(CUSTOMERS)
    database.execute("CREATE PUBLICATION tailrace FOR TABLE orders")
    settings = config(database, ENRICH, where=expression)
    found = [each for each in check(settings, sinks=False).findings if each.check == "expression"]
    assert reason in found[0].finding


def test_a_table_without_the_key_is_refused(database: Database) -> None:
    database.execute(CUSTOMERS)
    database.execute("CREATE PUBLICATION tailrace FOR TABLE customers")
    settings = config(database, ENRICH, where="customer.name = 'x'")
    (found,) = [
        each for each in check(settings, spark=False).findings if each.check == "expression"
    ]
    assert "public.customers has no column customer_id, which is the key of the lookup" in (
        found.finding
    )


def test_names_of_lookups_are_checked() -> None:
    lookup = {"query": QUERY, "key": "customer_id"}
    for name in ("after", "Customer", "a b", ""):
        with pytest.raises(ValueError, match="cannot name a lookup"):
            pipeline(enrich={name: lookup}, where="true")
    with pytest.raises(ValueError, match="no effect without an SQL expression"):
        pipeline(enrich={"customer": lookup})
    with pytest.raises(ExpressionError, match="add AS name"):
        parse(pipeline(enrich={"customer": lookup}, select=["customer.name"]))


def pipeline(**settings: Any) -> Any:
    return Config.model_validate({"pipelines": {"p": {**settings, "sink": SINK}}}).pipelines["p"]


def config(database: Database, lookups: dict[str, Any], where: str = "true") -> Config:
    made = {"enrich": lookups, "where": where, "sink": SINK}
    return Config.model_validate({"source": {"dsn": database.dsn}, "pipelines": {"p": made}})
