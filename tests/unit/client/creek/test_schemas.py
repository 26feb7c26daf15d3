"""Schema messages and their cache."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tailrace.client.creek import SchemaMessage, schemas
from tailrace.client.creek.schemas import SchemaCache
from tailrace.encode.creek import schema as creek
from tailrace.errors import MalformedError
from tailrace.schema import ReplicaIdentity
from tests.unit.client.creek.relations import relation


def message(fingerprint: str, columns: str = "ab") -> SchemaMessage:
    text = creek.event(relation(ReplicaIdentity.DEFAULT, "a", columns), {}).text
    return SchemaMessage(
        fingerprint=fingerprint,
        schema=text,
        source="s.t",
        created_at=datetime(2026, 1, 2, tzinfo=UTC),
    )


def test_cache_removes_the_least_recently_used_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "MAX_CACHED", 3)
    cache = SchemaCache()
    for number in range(3):
        cache.add(message(str(number)), "here")
    first = cache.change_schema("0", "here")
    assert first is not None
    assert cache.change_schema("0", "here") is first
    assert cache.change_schema("0", "there") is None
    cache.add(message("3"), "here")
    assert cache.change_schema("1", "here") is None
    assert cache.change_schema("0", "here") is first


def test_new_text_of_a_fingerprint_removes_the_schemas_of_its_subject() -> None:
    cache = SchemaCache()
    for subject, fingerprint in (("here", "0"), ("here", "1"), ("there", "0")):
        cache.add(message(fingerprint), subject)
    cache.add(message("0"), "here")
    assert cache.change_schema("1", "here") is not None
    cache.add(message("0", "abc"), "here")
    schema = cache.change_schema("0", "here")
    assert schema is not None
    assert schema.after.columns == ("a", "b", "c")
    assert cache.change_schema("1", "here") is None
    assert cache.change_schema("0", "there") is not None


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"fingerprint":"","schema":"","source":"","created_at":"now"}']
)
def test_invalid_schema_messages_are_malformed(data: bytes) -> None:
    with pytest.raises(MalformedError):
        SchemaMessage.of(data)
