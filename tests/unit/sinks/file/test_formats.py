from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailrace.message import MESSAGES
from tailrace.position import ORIGIN
from tailrace.sinks.contract import Lane
from tailrace.sinks.file.formats import lines_of, not_lines_of_json
from tailrace.sinks.file.settings import FileSink
from tailrace.sinks.file.sink_type import SINK
from tailrace.sinks.file.spool import by_folder
from tests.unit.sinks.file.stores import queried
from tests.unit.sinks.rows import rows

if TYPE_CHECKING:
    from pathlib import Path

DAY_US = 86_400_000_000


def batch(
    numbers: range, *, size: int = 0, destination: bytes = b"public/orders"
) -> pa.RecordBatch:
    """Numbered messages with JSON, three hours apart."""
    made = rows(numbers, destination=destination)
    payloads = [json.dumps({"n": n, "text": "ž" * size}).encode() for n in numbers]
    times = [n * DAY_US // 8 for n in numbers]
    for name, values in (("payload", payloads), ("committed_at", times)):
        at = MESSAGES.get_field_index(name)
        made = made.set_column(at, MESSAGES.field(at), pa.array(values, MESSAGES.field(at).type))
    return made


def write(root: Path, *batches: pa.RecordBatch, **keys: object) -> list[Path]:
    settings = FileSink.model_validate({"type": "file", "url": str(root), **keys})
    sink = SINK.open(settings, Lane(pipeline="p"))
    sink.open(ORIGIN)
    for each in batches:
        assert sink.inspect(each) == {}
        sink.write(each)
    sink.flush()
    sink.close()
    return sorted(path for path in root.rglob("*-*") if path.is_file())


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
@pytest.mark.parametrize("buffer_bytes", [2**16, 2**26])
def test_lines_of_json(tmp_path: Path, compression: str, buffer_bytes: int) -> None:
    """Also if a file is written in several parts, each compressed on its own."""
    many = [batch(range(start, start + 50), size=200) for start in range(0, 500, 50)]
    written = write(
        tmp_path, *many, format="jsonl", compression=compression, buffer_bytes=buffer_bytes
    )
    (path,) = [each for each in written if each.suffix != ".commit"]
    ends = {"none": ".jsonl", "gzip": ".jsonl.gz", "zstd": ".jsonl.zst"}
    assert path.name.endswith(ends[compression])
    found = queried(f"SELECT n, length(text) FROM read_json('{path}')")
    assert found == [(number, 200) for number in range(500)]
    if compression == "gzip":
        assert len(gzip.decompress(path.read_bytes()).splitlines()) == 500


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_parquet_has_real_types(tmp_path: Path, compression: str) -> None:
    written = write(tmp_path, batch(range(20)), batch(range(20, 30)), compression=compression)
    (path,) = [each for each in written if each.suffix == ".parquet"]
    codec = pq.ParquetFile(path).metadata.row_group(0).column(0).compression
    assert codec == {"none": "UNCOMPRESSED"}.get(compression, compression.upper())
    described = queried(f"DESCRIBE FROM read_parquet('{path}')")
    assert {name: kind for name, kind, *_ in described} == {
        "destination": "VARCHAR",
        "id": "VARCHAR",
        "key": "BLOB",
        "payload": "BLOB",
        "lsn": "UBIGINT",
        "ordinal": "UBIGINT",
        "committed_at": "TIMESTAMP WITH TIME ZONE",
    }
    numbers = queried(
        f"SELECT (decode(payload)->>'n')::int, epoch_us(committed_at) FROM read_parquet('{path}')"
    )
    assert numbers == [(number, number * DAY_US // 8) for number in range(30)]


def test_row_groups_are_large(tmp_path: Path) -> None:
    many = [batch(range(start, start + 10)) for start in range(0, 300, 10)]
    (path,) = [each for each in write(tmp_path, *many) if each.suffix == ".parquet"]
    assert pq.ParquetFile(path).metadata.num_row_groups == 1


def test_memory_is_bounded_by_the_largest_spools(tmp_path: Path) -> None:
    """GIVEN messages of many tables, more than the buffer holds THEN all of them arrive."""
    many = [
        batch(range(start, start + 10), size=1000, destination=b"t/%d" % (start % 7))
        for start in range(0, 400, 10)
    ]
    write(tmp_path, *many, buffer_bytes=2**16)
    found = queried(
        f"SELECT destination, count(*) FROM read_parquet('{tmp_path}/t/*/*.parquet') GROUP BY 1"
    )
    assert sum(count for _, count in found) == 400
    assert len(found) == 7


def test_a_folder_per_day(tmp_path: Path) -> None:
    write(tmp_path, batch(range(20)), partition="date")
    found = queried(
        f"SELECT date::varchar, count(*) FROM read_parquet('{tmp_path}/public/orders/*/*.parquet', "
        "hive_partitioning = true) GROUP BY 1 ORDER BY 1"
    )
    assert found == [("1970-01-01", 8), ("1970-01-02", 8), ("1970-01-03", 4)]


def test_messages_of_a_folder_stay_in_order() -> None:
    single = [rows([n], destination=b"ab"[n % 2 : n % 2 + 1]) for n in range(9)]
    mixed = pa.concat_batches(single)
    found = dict(by_folder(mixed.slice(1), by_date=False))
    assert list(found) == ["b", "a"]
    assert [int(each.split(b"\r")[0]) for each in found["a"]["payload"].to_pylist()] == [2, 4, 6, 8]
    assert [int(each.split(b"\r")[0]) for each in found["b"]["payload"].to_pylist()] == [1, 3, 5, 7]


@pytest.mark.parametrize(
    ("payload", "valid"),
    [
        (b'{"a": 1}', True), (b"[1]", True), (b'"\xc5\xbe"', True), (b"-1", True), (b"null", True),
        (b'{"a":\t1}', True), (b"true", True),
        (b"", False), (b'{\n"a": 1}', False), (b'{"a": 1}\r', False), (b"\x81\xa1a\x01", False),
        (b'"\xff"', False), (b"hello", False), (b" 1", False), (b'"\x00"', False),
    ],
)  # fmt: skip
def test_what_is_a_line_of_json(payload: bytes, valid: bool) -> None:
    surrounded = pa.array([b"x", b"{}", payload, b"{}", b"\n"], pa.binary()).slice(1, 3)
    assert not_lines_of_json(surrounded) == ([] if valid else [1])


def test_nothing_has_no_lines() -> None:
    assert not_lines_of_json(pa.array([], pa.binary())) == []
    assert lines_of([pa.array([], pa.binary())]).to_pybytes() == b""


def test_a_payload_that_is_not_json_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    settings = FileSink.model_validate({"type": "file", "url": str(tmp_path), "format": "jsonl"})
    sink = SINK.open(settings, Lane(pipeline="p"))
    sink.open(ORIGIN)
    refused = sink.inspect(rows(range(2), destination=b"a"))
    assert list(refused) == [0, 1]
    assert "encoding: json" in refused[0].hint
    sink.close()
