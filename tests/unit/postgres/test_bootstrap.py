"""The printed setup script, and what counts as a log, without a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tailrace.config import load
from tailrace.postgres.bootstrap import log_exists, setup_sql
from tailrace.postgres.names import TableName

if TYPE_CHECKING:
    from pathlib import Path

TABLES = [TableName("sales", "orders"), TableName("public", "Users")]


def test_the_publication_is_created_before_the_slot() -> None:
    script = setup_sql(load(None), tables=TABLES, role="reader")
    assert script.index("CREATE PUBLICATION") < script.index("pg_create_logical_replication_slot")


def test_the_script_grants_named_tables_only() -> None:
    script = setup_sql(load(None), tables=TABLES, role="reader")
    assert 'GRANT USAGE ON SCHEMA "public" TO "reader";' in script
    assert 'GRANT USAGE ON SCHEMA "sales" TO "reader";' in script
    assert 'GRANT SELECT ON TABLE "public"."Users" TO "reader";' in script
    assert "GRANT SELECT ON ALL TABLES" not in script


def test_the_script_for_all_tables_grants_every_schema() -> None:
    script = setup_sql(load(None), all_tables=True, role="reader")
    assert "FOR ALL TABLES" in script
    assert "'GRANT SELECT ON ALL TABLES IN SCHEMA %I TO %I', namespace, 'reader'" in script


def test_names_in_the_script_are_quoted() -> None:
    config = load(None, {"source": {"slot": "my_slot"}})
    script = setup_sql(config, tables=TABLES, role="it's")
    assert 'CREATE ROLE "it\'s" WITH LOGIN REPLICATION;' in script
    assert "current_database(), 'it''s')" in script
    assert "pg_create_logical_replication_slot('my_slot', 'pgoutput'" in script


@pytest.mark.parametrize(
    ("name", "expected"),
    [("durable", True), ("0000000001-0000000000001000.seg", True), ("lease", False)],
)
def test_a_log_is_a_segment_or_a_mark(tmp_path: Path, name: str, expected: bool) -> None:
    assert not log_exists(tmp_path / "missing")
    (tmp_path / name).touch()
    assert log_exists(tmp_path) is expected
