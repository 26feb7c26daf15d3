"""Chunks and metadata of snapshots."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
import zstandard

from tailrace.client import Chunk, Meta
from tailrace.client.names import Table
from tailrace.client.readers.reader import StreamMessage
from tailrace.client.snapshots.messages import chunk_subject, meta_subject, read_chunk
from tailrace.errors import MalformedError

ROWS = [{"id": 1}, {"id": 2}]
PAYLOAD = orjson.dumps({"data": ROWS})
ACCESS: Any = SimpleNamespace(encoding=None)


def message(data: bytes, **headers: str) -> StreamMessage:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return StreamMessage(1, data, 0, headers=names, subject="init.snap.users.snap-1.12")


def read(data: bytes, **headers: str) -> Chunk:
    return asyncio.run(read_chunk(ACCESS, "snap-1", message(data, **headers)))


def test_chunk_has_its_number_and_rows() -> None:
    chunk = read(PAYLOAD)
    assert (chunk.snapshot_id, chunk.number, chunk.columns) == ("snap-1", 12, None)
    assert chunk.rows() == ROWS


def test_compressed_chunk_is_decompressed() -> None:
    compressed = zstandard.ZstdCompressor().compress(PAYLOAD)
    assert read(compressed, Content_Encoding="zstd").rows() == ROWS
    with pytest.raises(MalformedError, match="cannot be decompressed"):
        read(PAYLOAD, Content_Encoding="zstd").rows()


def test_unknown_compression_is_malformed() -> None:
    with pytest.raises(MalformedError, match="gzip"):
        read(PAYLOAD, Content_Encoding="gzip")


def test_chunk_of_copy_text_names_its_columns() -> None:
    chunk = read(b"1\tAda\n", Tailrace_Columns='["id","name"]')
    assert (chunk.columns, chunk.plain()) == (("id", "name"), b"1\tAda\n")


@pytest.mark.parametrize("content", [{}, {"snapshot_id": "a"}, {"since": None, "lsn": "x"}])
def test_invalid_metadata_are_malformed(content: dict[str, Any]) -> None:
    with pytest.raises(MalformedError, match="metadata of a snapshot"):
        Meta.of(content)


def test_subjects_of_both_forms() -> None:
    table = Table("sales", "users")
    assert chunk_subject(table, "snap-1", "rows").endswith(".sales.users.snap-1.*")
    assert chunk_subject(table, "snap-1", "rows") != chunk_subject(table, "snap-1", "copy")
    assert meta_subject(table, "rows") != meta_subject(table, "copy")
