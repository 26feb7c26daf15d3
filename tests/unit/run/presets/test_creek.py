"""The Creek preset: lists of tables, and the names of streams in both layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from tailrace.config import load
from tailrace.errors import ConfigError
from tailrace.postgres.names import TableName
from tailrace.run.presets.creek import settings, tables_of, write
from tailrace.run.presets.options import CreekOptions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tailrace.config import Pipeline

NAMES = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), min_size=1)


def test_lists_of_tables() -> None:
    assert tables_of("") == []
    assert tables_of(" , ") == []
    expected = [TableName("public", "a"), TableName("sales", "b")]
    for text in ("a sales.b", "a,sales.b", " A ,\n SALES.b ,"):
        assert tables_of(text) == expected


@given(st.lists(st.builds(TableName, NAMES, NAMES)), st.sampled_from([" ", ",", ", ", "\n"]))
def test_quoted_names_are_parsed(tables: list[TableName], between: str) -> None:
    assert tables_of(between.join(table.quoted for table in tables)) == tables


def test_a_name_with_too_many_parts() -> None:
    with pytest.raises(ConfigError, match="invalid table name"):
        tables_of("a.b.c")


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Pipeline]:
    """The pipeline of the preset, as it is read from its settings file."""

    def write_and_load(uri: str, **options: Any) -> Pipeline:
        monkeypatch.setenv("PG_URI", uri)
        monkeypatch.setenv("NATS_URI", "nats://localhost:4222")
        file = write(CreekOptions(pg_uri=SecretStr(uri), data=tmp_path, **options))
        return load(file).pipelines["creek"]

    return write_and_load


def test_layout_namespace_is_the_default(written: Callable[..., Pipeline]) -> None:
    found = written("dbname=shop")
    stream, snapshots = found.jetstream.stream, found.snapshots
    assert snapshots is not None
    assert (stream.name, stream.subjects) == ("CREEK_wal", ("CREEK.*.wal.>",))
    assert found.jetstream.subject == "CREEK.{database}.wal.{schema}.{table}"
    assert (snapshots.request, snapshots.stream.name) == ("CREEK._snapshot", "CREEK_snap")
    assert found.creek_layout.schema_requests == ("CREEK._schema", "CREEK._schemas")


@pytest.mark.parametrize("uri", ["dbname=shop user=creek", "postgres://creek:x@db:5432/shop"])
def test_layout_database_names_streams_by_database(
    written: Callable[..., Pipeline], uri: str
) -> None:
    """As Creek's clients of 2025 compute them: NS_KIND_DB, and NS_KIND_DB.SCHEMA.TABLE."""
    found = written(uri, namespace="EU", layout="database")
    stream, snapshots, names = found.jetstream.stream, found.snapshots, found.creek_layout
    assert snapshots is not None
    assert (stream.name, stream.subjects) == ("EU_wal_shop", ("EU_wal_shop.>",))
    assert found.jetstream.subject == "EU_wal_shop.{schema}.{table}"
    assert (snapshots.request, snapshots.stream.name) == ("EU_snap_shop", "EU_snap_shop")
    assert snapshots.stream.subjects == ("EU_snap_shop.>",)
    assert names.schema_requests == ("EU_schema_shop",)
    assert names.stream("schema") == "EU_schema_shop"
    assert names.subject("schema", "shop", "public", "a.b") == "EU_schema_shop.public.a%2Eb"


def test_layout_database_needs_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    options = CreekOptions(pg_uri=SecretStr("host=db"), layout="database")
    monkeypatch.setattr("tailrace.run.presets.creek.database_name", lambda _dsn: "")
    with pytest.raises(ConfigError, match="PG_URI does not name a database"):
        settings(options)
