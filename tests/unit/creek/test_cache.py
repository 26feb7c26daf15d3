"""The cache of schemas keeps the format of its files."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tailrace.creek.cache import SchemaCache
from tailrace.creek.sql import StoredSchema
from tailrace.log.relation_history import LogCursor

if TYPE_CHECKING:
    from pathlib import Path

STORED = StoredSchema(
    fingerprint="Sykce18MgAQ=",
    schema='"int"',
    source="public.users",
    at=datetime(2026, 3, 1, 12, 0, 0, 5, tzinfo=UTC),
)
SCHEMAS = (
    b'[{"fingerprint":"Sykce18MgAQ=","schema":"\\"int\\"","source":"public.users",'
    b'"at":"2026-03-01T12:00:00.000005+00:00"}]'
)


def test_the_format_of_the_files(tmp_path: Path) -> None:
    for namespaced, name in ((False, "p.place"), (True, "p.namespaced.place")):
        cache = SchemaCache(tmp_path, "p", namespaced=namespaced)
        cache.write([STORED], LogCursor("1.seg", 12, "a"))
        assert (tmp_path / "p.schemas").read_bytes() == SCHEMAS
        assert (tmp_path / name).read_bytes() == b'{"segment":"1.seg","offset":12,"log_id":"a"}'


def test_files_of_older_releases_are_read(tmp_path: Path) -> None:
    (tmp_path / "p.schemas").write_bytes(SCHEMAS)
    (tmp_path / "p.place").write_bytes(b'{"segment":"1.seg","offset":12}')
    cache = SchemaCache(tmp_path, "p", namespaced=False)
    assert cache.read() == ([STORED], LogCursor("1.seg", 12))


def test_another_form_of_schemas_reads_the_log_again(tmp_path: Path) -> None:
    """A pipeline that lags behind encodes relations before the cursor, now in the other form."""
    SchemaCache(tmp_path, "p", namespaced=False).write([STORED], LogCursor("1.seg", 12))
    assert SchemaCache(tmp_path, "p").read() == ([STORED], None)


def test_without_schemas_the_cursor_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "p.namespaced.place").write_bytes(b'{"segment":"1.seg","offset":12}')
    assert SchemaCache(tmp_path, "p").read() == ([], None)
