"""COPY: a stretch of a table as columns of cells, in the values of the stream; or as its text."""

from __future__ import annotations

from functools import partial
from itertools import chain, islice, takewhile
from operator import itemgetter
from select import POLLIN, poll
from typing import TYPE_CHECKING

import numpy as np
import psycopg
from psycopg import pq

from tailrace.postgres.connection import classify, quote_ident, translate
from tailrace.snapshot.cells import cells
from tailrace.snapshot.lines import Lines
from tailrace.snapshot.receive import possible, receive

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from psycopg import Connection

    from tailrace.decode.group import Image
    from tailrace.snapshot.table import Stretch

_BLOCK_ROWS, _BLOCK_BYTES = 1 << 30, 1 << 22
_GULP_ROWS = 64
_GULPS_BYTES = 1 << 22
_AT_ONCE = 1
_NOTHING_YET, _END = (0, b""), (-1, b"")
# TLS may hold back bytes that have come: not to be waited for.
_PATIENCE_MS = 1000
_DATA = itemgetter(1)


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
    """The rows of a query in the order PostgreSQL sends them: how many, and their cells.

    Until the last has come, or it is closed, nobody else may use the connection.
    """
    for found in _copied(connection, select):
        yield len(found), cells(found, columns)


def lines(
    connection: Connection,
    select: str,
    *,
    most_rows: int = _BLOCK_ROWS,
    most_bytes: int = _BLOCK_BYTES,
) -> Iterator[tuple[int, bytearray]]:
    """The rows of a query as COPY writes them, some at a time: how many, and their text."""
    return cut(_copied(connection, select), most_rows=most_rows, most_bytes=most_bytes)


def cut(
    found: Iterable[Lines], *, most_rows: int, most_bytes: int
) -> Iterator[tuple[int, bytearray]]:
    """The text of as many lines at a time as there may be; one that is too large comes alone.

    The same lines in the same order are cut in the same places, however they came.
    """
    block, rows = bytearray(), 0
    for each in found:
        text, ends = each.text(), np.cumsum(each.ends - each.begins)
        done = begin = 0
        while done < len(ends):
            room = begin + most_bytes - len(block)
            fit = min(int(np.searchsorted(ends, room, "right")) - done, most_rows - rows)
            if fit <= 0 and rows:
                yield rows, block
                block, rows = bytearray(), 0
                continue
            fit = max(fit, 1)
            done, rows = done + fit, rows + fit
            end = int(ends[done - 1])
            block += text[begin:end]
            begin = end
    if rows:
        yield rows, block


def _copied(connection: Connection, select: str) -> Iterator[Lines]:
    session, statement = connection.pgconn, f"COPY ({select}) TO STDOUT"
    way = receive if possible(session) else by_libpq
    return way(session, statement)


def by_libpq(session: pq.abc.PGconn, statement: str) -> Iterator[Lines]:
    """The rows of COPY … TO STDOUT, some megabytes at a time, over whatever line libpq has."""
    _expect(session.exec_(statement.encode()), pq.ExecStatus.COPY_OUT)
    text, sizes = bytearray(), list[int]()
    for found in _gulps(session):
        text += b"".join(found)
        sizes += map(len, found)
        if len(text) >= _GULPS_BYTES:
            yield Lines.of(text, sizes)
            text, sizes = bytearray(), []
    # All of them first: only then is the session at rest.
    for result in list(iter(session.get_result, None)):
        _expect(result, pq.ExecStatus.COMMAND_OK)
    if sizes:
        yield Lines.of(text, sizes)


def _gulps(session: pq.abc.PGconn) -> Iterator[list[memoryview]]:
    """What COPY sends, some rows at a time; no statement of Python's runs for each of them."""
    line = poll()
    line.register(session.socket, POLLIN)
    received = iter(partial(session.get_copy_data, _AT_ONCE), _END)
    try:
        while (first := next(received, _END)) != _END:
            if first == _NOTHING_YET:
                # Waits here and not in libpq, which would hold up all other threads.
                line.poll(_PATIENCE_MS)
                session.consume_input()
            else:
                yield [*map(_DATA, chain([first], takewhile(_DATA, islice(received, _GULP_ROWS))))]
    except psycopg.Error as error:
        raise translate(error) from error


def _expect(result: pq.abc.PGresult, status: pq.ExecStatus) -> None:
    if result.status != status:
        state = result.error_field(pq.DiagnosticField.SQLSTATE)
        raise classify(state.decode() if state else None, result.get_error_message())
