"""COPY: a stretch of a table as columns of cells, in the values of the stream.

PostgreSQL sends a message a row; they are strung together as they come and read by pyarrow's CSV
reader, thousands at a time. It is COPY's text format: CSV takes PostgreSQL half as long again. What
pyarrow does not know of it are the escapes, so those are undone here, in the columns that have any.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import pq
from pyarrow import csv

from tailrace.capture.connection import classify, quote_ident, translate
from tailrace.decode.group import Cells

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from psycopg import Connection

    from tailrace.decode.group import Image
    from tailrace.snapshot.table import Stretch

_BLOCK_BYTES, _BLOCK_ROWS = 1 << 22, 1 << 30
_PARSE = csv.ParseOptions(
    delimiter="\t",
    quote_char=False,
    double_quote=False,
    escape_char=False,
    newlines_in_values=False,
    ignore_empty_lines=False,
)
_NULL = "\\N"
_GULP_ROWS = 64
_END = (-1, b"")
_DATA = itemgetter(1)
# A backslash stands for itself last, behind a byte that no text of PostgreSQL's holds.
_ESCAPES = (
    (b"\\\\", b"\0"),
    (b"\\b", b"\b"),
    (b"\\f", b"\f"),
    (b"\\n", b"\n"),
    (b"\\r", b"\r"),
    (b"\\t", b"\t"),
    (b"\\v", b"\v"),
    (b"\0", b"\\"),
)


def query(stretch: Stretch, columns: Sequence[str], conditions: Sequence[str] = ()) -> str:
    """The SELECT for a stretch. Conditions are SQL of our own making."""
    wanted = ", ".join(map(quote_ident, columns))
    found = list(conditions)
    if stretch.first is not None:
        found.append(f"ctid >= '({stretch.first},0)'::tid")
    if stretch.end is not None:
        found.append(f"ctid < '({stretch.end},0)'::tid")
    where = f" WHERE {' AND '.join(found)}" if found else ""
    return f"SELECT {wanted} FROM ONLY {stretch.leaf.quoted}{where}"  # noqa: S608 - quoted, ours


def copy(connection: Connection, select: str, columns: int) -> Iterator[tuple[int, Image]]:
    """The rows of a query in the order PostgreSQL sends them: how many, and their cells."""
    for _, block in lines(connection, select):
        yield parse(block, columns)


def parse(block: bytes | bytearray, columns: int) -> tuple[int, Image]:
    """Whole lines: how many, and their cells."""
    if not columns:
        return block.count(b"\n"), ()
    names = [str(number) for number in range(columns)]
    table = csv.read_csv(
        pa.BufferReader(block),
        read_options=csv.ReadOptions(
            column_names=names, block_size=len(block) + 1, use_threads=False
        ),
        parse_options=_PARSE,
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.binary()),
            null_values=[_NULL],
            strings_can_be_null=True,
        ),
    )
    cells = [column.combine_chunks() for column in table.columns]
    # A NULL has a backslash, too.
    if block.count(b"\\") > sum(column.null_count for column in cells):
        cells = [_unescaped(column) for column in cells]
    return table.num_rows, tuple(map(Cells, cells))


def _unescaped(values: pa.BinaryArray) -> pa.BinaryArray:
    if not pc.any(pc.match_substring(values, b"\\")).as_py():
        return values
    for written, meant in _ESCAPES:
        values = pc.replace_substring(values, written, meant)
    return values


def lines(
    connection: Connection,
    select: str,
    *,
    most_rows: int = _BLOCK_ROWS,
    most_bytes: int = _BLOCK_BYTES,
) -> Iterator[tuple[int, bytearray]]:
    """The rows of a query as COPY writes them, some at a time: how many, and their text."""
    session = connection.pgconn
    statement = f"COPY ({select}) TO STDOUT"
    _expect(session.exec_(statement.encode()), pq.ExecStatus.COPY_OUT)
    block, rows = bytearray(), 0
    for found in _gulps(session):
        gulp = b"".join(found)
        if rows + len(found) <= most_rows and len(block) + len(gulp) <= most_bytes:
            block += gulp
            rows += len(found)
            continue
        for row in found:
            if rows == most_rows or (rows and len(block) + len(row) > most_bytes):
                yield rows, block
                block, rows = bytearray(), 0
            block += row
            rows += 1
    while (result := session.get_result()) is not None:
        _expect(result, pq.ExecStatus.COMMAND_OK)
    if rows:
        yield rows, block


def _gulps(session: pq.abc.PGconn) -> Iterator[list[memoryview]]:
    """What COPY sends, some rows at a time; no statement of Python's runs for each of them."""
    received = iter(partial(session.get_copy_data, 0), _END)
    try:
        while found := list(map(_DATA, islice(received, _GULP_ROWS))):
            yield found
    except psycopg.Error as error:
        raise translate(error) from error


def _expect(result: pq.abc.PGresult, status: pq.ExecStatus) -> None:
    if result.status != status:
        state = result.error_field(pq.DiagnosticField.SQLSTATE)
        raise classify(state.decode() if state else None, result.get_error_message())
