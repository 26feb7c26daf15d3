"""The formats of files. A writer appends batches of MESSAGES to a file of this machine.

Everything is done column by column: no Python code runs per message.
"""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import zstandard

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from tailrace.sinks.file.settings import FileSink

PARQUET = pa.schema(
    [
        pa.field("destination", pa.string(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("payload", pa.binary(), nullable=False),
        pa.field("lsn", pa.uint64(), nullable=False),
        pa.field("ordinal", pa.uint64(), nullable=False),
        pa.field("committed_at", pa.timestamp("us", "UTC"), nullable=False),
    ]
)
"""The columns of a Parquet file."""
_GZIP_LEVEL = 1
_ZSTD_LEVEL = 3
_ONE_VALUE = ("destination", "lsn", "ordinal", "committed_at")
"""Columns whose values repeat or are close to each other: a dictionary is small."""
_BEGINS = np.zeros(256, np.bool_)
_BEGINS[list(b'{["-0123456789tfn')] = True
"""Bytes that JSON can begin with."""


class Writer(Protocol):
    """Writes one file."""

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Append messages."""

    def close(self) -> None:
        """Complete the file."""


def writer_of(settings: FileSink, path: Path) -> Writer:
    """A writer for a file that is created or empty."""
    if settings.format == "parquet":
        return Parquet(path, compression=settings.compression)
    return JsonLines(path, compression=settings.compression)


class JsonLines:
    """One payload per line. Each write is a gzip member or a zstd frame; readers join them."""

    def __init__(self, path: Path, *, compression: str) -> None:
        self._path = path
        self._compression = compression

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Append lines."""
        data: bytes | pa.Buffer = lines_of([batch.column("payload") for batch in batches])
        if self._compression == "gzip":
            data = gzip.compress(data, _GZIP_LEVEL, mtime=0)
        elif self._compression == "zstd":
            data = zstandard.ZstdCompressor(_ZSTD_LEVEL).compress(data)
        with self._path.open("ab", buffering=0) as file:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]

    def close(self) -> None:
        """Nothing is kept open."""


class Parquet:
    """One row group per write."""

    def __init__(self, path: Path, *, compression: str) -> None:
        self._file = path.open("wb")
        self._writer = pq.ParquetWriter(
            self._file, PARQUET, compression=compression, use_dictionary=list(_ONE_VALUE)
        )

    def write(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Append a row group."""
        table = pa.Table.from_batches([_typed(batch) for batch in batches], PARQUET)
        self._writer.write_table(table, row_group_size=table.num_rows)

    def close(self) -> None:
        """Write the footer."""
        try:
            self._writer.close()
        finally:
            self._file.close()


def _typed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Messages with the columns of a Parquet file. Their ids and destinations are UTF-8."""
    columns = [batch.column(field.name).cast(field.type) for field in PARQUET]
    return pa.record_batch(columns, schema=PARQUET)


def lines_of(payloads: Sequence[pa.BinaryArray]) -> pa.Buffer:
    r"""Payloads as lines.

    >>> lines_of([pa.array([b"1", b"{}", b"3"]).slice(1), pa.array([b"4"])]).to_pybytes()
    b'{}\n3\n4\n'
    """
    # A last, empty payload gives the last line its end.
    values = pa.concat_arrays([*payloads, pa.array([b""], pa.binary())])
    offsets = pa.array([0, len(values)], pa.int32())
    return pc.binary_join(pa.ListArray.from_arrays(offsets, values), b"\n")[0].as_buffer()


def not_lines_of_json(payloads: pa.BinaryArray) -> list[int]:
    r"""The rows that are no line of JSON: with a line break, another encoding, or empty.

    The payloads are not parsed: JSON is UTF-8 without control characters and begins like a value.

    >>> not_lines_of_json(pa.array([b'{"a": 1}', b"{\n}", b"\x81\xa1a\x01", b"", b'"\xff"', b"x"]))
    [1, 2, 3, 4, 5]
    """
    if not len(payloads):
        return []
    offsets, data = _cut(payloads)
    lengths = np.diff(offsets)
    wrong = lengths == 0
    wrong[~wrong] = ~_BEGINS[data[offsets[:-1][~wrong]]]
    control = data < 0x20
    if control.any():
        places = np.flatnonzero(control & (data != 0x09))
        wrong[np.searchsorted(offsets, places, side="right") - 1] = True
    if not _is_text(payloads):
        wrong |= np.array([not _is_text(payloads.slice(row, 1)) for row in range(len(payloads))])
    rows: list[int] = np.flatnonzero(wrong).tolist()
    return rows


def _cut(values: pa.BinaryArray) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Offsets from 0, and the bytes that they cut into values."""
    _, where, content = values.buffers()
    offsets = np.frombuffer(where, np.int32)[values.offset : values.offset + len(values) + 1]
    data = np.frombuffer(content or b"", np.uint8)[offsets[0] : offsets[-1]]
    return offsets.astype(np.int64) - offsets[0], data


def _is_text(values: pa.BinaryArray) -> bool:
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True
