"""Every request gets an answer within a second, also while a server is unreachable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.creek.snapshot.system import System
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tailrace.testing import EmbeddedPostgres
    from tests.fix_postgres import Database


def tables(database: Database) -> None:
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY); CREATE TABLE others (id int PRIMARY KEY);"
        "CREATE TABLE hidden (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE items, others"
    )


@pytest.mark.parametrize(
    "body",
    [b"", b"items", b"[]", b"7", b"\xff", b'{"database": "x"}',
     b'{"database": "x", "namespace": "y", "table": 7}'],
)  # fmt: skip
def test_malformed(system: System, body: bytes) -> None:
    tables(system.database)
    system.start_service()
    answer = system.say(body)
    assert answer.status == "400"
    assert answer.error["code"] == "MALFORMED"
    assert "namespace" in answer.error["hint"]


def test_tables_that_are_not_published_or_not_selected(system: System) -> None:
    tables(system.database)
    system.pipeline["tables"] = ["public.items"]
    system.start_service()
    asked = ["nowhere", "hidden", "others", "items; --", "a\nb\0", "x" * 500_000]
    for answer in map(system.ask, asked):
        assert (answer.status, answer.error["code"]) == ("404", "BAD_CONFIG")
        assert "public.items" in answer.error["hint"]
        assert "public.others" not in answer.error["hint"]
    assert system.ask("items", namespace="other").status == "404"
    assert system.ask().text.startswith("CREEK.")


def test_another_database_is_for_another_producer(
    system: System, database16: Database, spark: SparkSession, tmp_path: Path
) -> None:
    tables(system.database)
    tables(database16)
    system.start_service()
    answer = system.ask(database="elsewhere")
    assert (answer.status, answer.error["code"]) == ("404", "BAD_CONFIG")
    other = System(spark, database16, system.server, tmp_path / "other")
    try:
        other.start_service()
        for asked in (system, other, system, other):
            expected = f"CREEK.{asked.database.name}.snap.public.items."
            wait_for(lambda: asked.ask().text.startswith(expected), "the request to be answered")  # noqa: B023
    finally:
        other.stop_service()


def test_while_postgres_is_unreachable(system: System, postgres: EmbeddedPostgres) -> None:
    """Tables known as published are answered for; others are unknown."""
    tables(system.database)
    system.start_service()
    system.over(system.ask().text)
    postgres.stop()
    try:
        topic = system.ask().text
        assert topic.startswith(f"CREEK.{system.database.name}.snap.public.items.")
        assert system.ask("hidden").status == "503"
    finally:
        postgres.start()
    assert system.over(topic)["state"] == "complete"


def test_before_postgres_has_ever_answered(system: System) -> None:
    system.source["dsn"] = "host=127.0.0.1 port=1 dbname=nowhere"
    system.start_service()
    answer = system.ask()
    assert (answer.status, answer.error["code"]) == ("503", "UNREACHABLE")


def test_while_the_table_is_locked(system: System) -> None:
    """It is known from the start."""
    tables(system.database)
    system.start_service()
    assert system.ask("hidden").status == "404"
    with system.database.connect() as holder:
        holder.execute("BEGIN")
        holder.execute("ALTER TABLE items ADD more int")
        topic = system.ask().text
        assert topic.startswith("CREEK.")
        holder.execute("COMMIT")
    assert system.over(topic)["state"] == "complete"
