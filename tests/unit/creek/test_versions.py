"""Schemas in memory: the newest text, the first time, and the document for clients."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING

import msgspec
import pytest

from tailrace.creek.cache import SchemaCache
from tailrace.creek.sql import StoredSchema
from tailrace.creek.versions import Version, Versions, document
from tailrace.encode.creek import schema as creek
from tailrace.log.relation_history import LogCursor
from tailrace.position import Lsn
from tailrace.schema import Column, Relation, ReplicaIdentity
from tailrace.tables import Tables
from tests.fix_log import TestLog, insert, relation, transaction

if TYPE_CHECKING:
    from pathlib import Path

TEXT, VARCHAR, INT4 = 25, 1043, 23
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def users(kind: int, namespace: str = "public") -> Version:
    relation = Relation(
        oid=1,
        namespace=namespace,
        name="users",
        replica_identity=ReplicaIdentity.DEFAULT,
        columns=(
            Column(name="id", type_oid=INT4, key=True),
            Column(name="name", type_oid=kind),
        ),
    )
    return Version(relation=relation, types={})


def test_a_document_is_as_clients_read_it() -> None:
    east = NOON.astimezone(timezone(timedelta(hours=2)))
    stored = StoredSchema(
        fingerprint="Sykce18MgAQ=", schema='"int"', source="public.users", at=east
    )
    assert msgspec.json.decode(document(stored)) == {
        "fingerprint": "Sykce18MgAQ=",
        "schema": '"int"',
        "source": "public.users",
        "created_at": "2026-03-01T12:00:00Z",
    }
    assert msgspec.json.decode(document(stored, Lsn.parse("1/A")))["lsn"] == "1/A"


def test_both_schemas_of_a_version_are_known(tmp_path: Path) -> None:
    versions = Versions(tmp_path, Tables(), SchemaCache(tmp_path, "p"))
    version = users(TEXT)
    for stored, partial in zip(versions.add(version), (False, True), strict=True):
        schema = creek.event(version.relation, {}, partial=partial)
        assert (stored.fingerprint, stored.schema) == (schema.name, schema.text)
        assert versions.find(schema.name) == stored


def test_the_newest_text_wins_and_the_first_time_stays(tmp_path: Path) -> None:
    versions = Versions(tmp_path, Tables(), SchemaCache(tmp_path, "p"))
    old, _ = versions.add(users(VARCHAR))
    new, _ = versions.add(users(TEXT))
    assert old.fingerprint == new.fingerprint
    assert (versions.find(old.fingerprint), new.at) == (new, old.at)
    assert old.schema != new.schema
    assert versions.dated(users(VARCHAR))[0] == old
    earlier = StoredSchema(
        fingerprint=new.fingerprint, schema=new.schema, source=new.source, at=NOON
    )
    found = versions.remember(earlier)
    assert found.at == min(NOON, new.at)


def test_no_log_yet(tmp_path: Path) -> None:
    versions = Versions(tmp_path / "missing", Tables(), SchemaCache(tmp_path, "p"))
    versions.read()
    assert versions.take() == ([], None)


def test_saved_schemas_are_known_after_a_restart(tmp_path: Path) -> None:
    cache = SchemaCache(tmp_path / "data", "p")
    assert cache.read() == ([], None)
    versions = Versions(tmp_path, Tables(), cache)
    stored = versions.add(users(TEXT))
    cursor = LogCursor("1.seg", 12)
    versions.save(cursor)
    assert cache.read() == (sorted(stored, key=lambda each: each.fingerprint), cursor)
    again = Versions(tmp_path, Tables(), SchemaCache(tmp_path / "data", "p"))
    assert [again.find(each.fingerprint) for each in stored] == [*stored]
    assert again.take() == ([], cursor)


def test_versions_that_were_not_published_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN versions that were taken but not saved WHEN publishing restarts THEN it gets them."""
    log = TestLog()
    monkeypatch.setattr("tailrace.creek.versions.LocalStore", lambda _path: log.store)
    versions = Versions(tmp_path, Tables(), SchemaCache(tmp_path, "p"))
    log.append(transaction(0))
    versions.read()
    published, cursor = versions.take()
    versions.save(cursor)
    log.append(transaction(1, insert(relation(2), 1)))
    versions.read()
    taken, _ = versions.take()
    assert taken
    versions.rewind()
    versions.read()
    assert versions.take()[0] == taken
    schemas = [stored for version in (*published, *taken) for stored in version.schemas(NOON)]
    assert all(versions.find(stored.fingerprint) for stored in schemas)


@pytest.mark.parametrize("damage", ["", "{", "[1]", '[{"fingerprint": 1}]', "null"])
def test_invalid_files_are_ignored(tmp_path: Path, damage: str) -> None:
    cache = SchemaCache(tmp_path, "p")
    versions = Versions(tmp_path, Tables(), cache)
    stored = versions.add(users(TEXT))
    versions.save(LogCursor("1.seg", 12))
    (tmp_path / "p.namespaced.place").write_text(damage)
    assert cache.read() == (sorted(stored, key=lambda each: each.fingerprint), None)
    (tmp_path / "p.schemas").write_text(damage)
    assert cache.read() == ([], None)
