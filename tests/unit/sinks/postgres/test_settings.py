"""Settings of the sink `postgres`: what is refused, and why."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from tailrace.change import Op
from tailrace.config import load
from tailrace.errors import ConfigError
from tailrace.sinks.postgres.destination import TableTemplate, table_of
from tailrace.sinks.postgres.settings import PostgresSink
from tailrace.sinks.postgres.sink_type import SINK

DSN = "host=db password=secret-word"


def settings(**keys: Any) -> PostgresSink:
    return PostgresSink.model_validate({"type": "postgres", "dsn": DSN, **keys})


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"retention": "90"}, "must be a duration such as 12h, 90d or 52w, got '90'"),
        ({"retention": "0d"}, "must be a duration"),
        ({"events": "a.b.c"}, "invalid table name 'a.b.c'"),
        ({"positions": ""}, "invalid table name"),
        ({"mode": "tables", "retention": "1d"}, "`retention` needs `mode: events`"),
        ({"mode": "tables", "payload": "json"}, "`payload` needs `mode: events`"),
        ({"replica_role": True}, "`replica_role` needs `mode: tables`"),
        ({"synchronous_commit": "maybe"}, "'off'"),
        ({"statement_timeout_s": 0}, "greater than or equal to 1"),
    ],
)
def test_invalid_settings_are_refused(keys: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError) as caught:
        settings(**keys)
    assert reason in str(caught.value)


def test_secrets_are_not_shown() -> None:
    shown = repr(settings(password="other-word"))
    assert "secret-word" not in shown
    assert "other-word" not in shown


def test_a_retention_is_a_duration() -> None:
    assert settings().keep is None
    assert settings(retention="36h").keep == timedelta(hours=36)
    assert settings(retention="2w").keep == timedelta(days=14)


@pytest.mark.parametrize(
    ("sink", "pipeline", "reason"),
    [
        ({"mode": "tables"}, {"shape": "bridge", "encoding": "json"}, "needs `shape: plain`"),
        ({"mode": "tables"}, {"shape": "plain", "encoding": "msgpack"}, "needs `shape: plain`"),
        ({}, {"shape": "bridge"}, "`payload: jsonb` needs `encoding: json`"),
        ({"payload": "json"}, {"encoding": "msgpack"}, "`payload: json` needs `encoding: json`"),
        ({"mode": "tables"}, {"shape": "plain"}, ""),
        ({"payload": "bytea"}, {"shape": "bridge"}, ""),
        ({}, {"shape": "sequin"}, ""),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    sink: dict[str, Any], pipeline: dict[str, Any], reason: str
) -> None:
    given = {"sink": {"type": "postgres", "dsn": DSN, **sink}, **pipeline}
    if not reason:
        assert isinstance(load(None, {"pipelines": {"p": given}}).pipelines["p"].sink, PostgresSink)
        return
    with pytest.raises(ConfigError, match=reason):
        load(None, {"pipelines": {"p": given}})


@pytest.mark.parametrize(
    ("template", "schema", "table", "expected"),
    [
        ("{schema}.{table}", "public", "orders", "public.orders"),
        ("{schema}.{table}", "Odd", 'a"b.c', '"Odd"."a""b.c"'),
        ("{table}", "sales", "orders", "sales.orders"),
        ("copy.{table}", "public", "Orders", 'copy."Orders"'),
    ],
)
def test_names_survive_the_way_to_the_target(
    template: str, schema: str, table: str, expected: str
) -> None:
    filled = TableTemplate(template, database="d").fill(schema, table, Op.INSERT)
    assert filled == expected
    found = table_of(filled.encode())
    assert found is not None
    assert found.name == table


@pytest.mark.parametrize("destination", [b"", b"a.b.c", b'a."b', b"\xff"])
def test_other_destinations_are_not_tables(destination: bytes) -> None:
    assert table_of(destination) is None


def test_check_reports_templates_that_give_no_table() -> None:
    tables = settings(mode="tables")
    found = [*SINK.check_destinations(tables, ["a.b.c", "a.b.c", "a.b"])]
    assert [each.finding for each in found] == ["a.b.c is not the name of a table"]
    assert [*SINK.check_destinations(settings(), ["a.b.c"])] == []
