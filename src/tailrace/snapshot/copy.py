"""COPY … TO STDOUT: the rows of a query as columns of cells, or as COPY's own text.

`tailrace.snapshot.receive` reads the rows from the socket where it can, libpq elsewhere.
"""

from __future__ import annotations

from functools import partial
from itertools import chain, islice, takewhile
from operator import itemgetter
from select import POLLIN, poll
from typing import TYPE_CHECKING

import numpy as np
import psycopg
from psycopg import pq

from tailrace.postgres.connection import classify, translate
from tailrace.postgres.names import quote_ident
from tailrace.snapshot.cells import cells
from tailrace.snapshot.lines import Lines
from tailrace.snapshot.receive import possible, receive

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from psycopg import Connection

    from tailrace.decode.group import Image
    from tailrace.snapshot.table import Stretch

_BLOCK_ROWS, _BLOCK_BYTES = 1 << 30, 1 << 22
_READ_ROWS = 64
_READ_BYTES = 1 << 22
_ASYNC = 1
_NOTHING_YET, _END = (0, b""), (-1, b"")
# A limit, because TLS may already hold received bytes that poll() does not see.
_POLL_MS = 1000
_DATA = itemgetter(1)


def query(stretch: Stretch, columns: Sequence[str], conditions: Sequence[str] = ()) -> str:
    """The SELECT for a stretch. Conditions are trusted SQL: row filters from the catalog."""
    names = ", ".join(map(quote_ident, columns))
    terms = list(conditions)
    if stretch.first is not None:
        terms.append(f"ctid >= '({stretch.first},0)'::tid")
    if stretch.end is not None:
        terms.append(f"ctid < '({stretch.end},0)'::tid")
    where = f" WHERE {' AND '.join(terms)}" if terms else ""
    return f"SELECT {names} FROM ONLY {stretch.leaf.quoted}{where}"  # noqa: S608 - quoted, ours


def copy(connection: Connection, select: str, columns: int) -> Iterator[tuple[int, Image]]:
    """The rows of a query in PostgreSQL's order, in blocks: count and cells.

    The connection must not be used otherwise until the iterator is exhausted or closed.
    """
    for block in _lines(connection, select):
        yield len(block), cells(block, columns)


def lines(
    connection: Connection,
    select: str,
    *,
    max_rows: int = _BLOCK_ROWS,
    max_bytes: int = _BLOCK_BYTES,
) -> Iterator[tuple[int, bytearray]]:
    """The rows of a query as COPY writes them, in blocks: count and text."""
    return cut(_lines(connection, select), max_rows=max_rows, max_bytes=max_bytes)


def cut(
    received: Iterable[Lines], *, max_rows: int, max_bytes: int
) -> Iterator[tuple[int, bytearray]]:
    """Blocks of at most `max_rows` lines and `max_bytes`; a longer line is a block of its own.

    The blocks depend on the lines alone, not on how they were received.
    """
    block, rows = bytearray(), 0
    for some in received:
        text, ends = some.text(), np.cumsum(some.ends - some.begins)
        done = begin = 0
        while done < len(ends):
            limit = begin + max_bytes - len(block)
            fit = min(int(np.searchsorted(ends, limit, "right")) - done, max_rows - rows)
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


def _lines(connection: Connection, select: str) -> Iterator[Lines]:
    session, statement = connection.pgconn, f"COPY ({select}) TO STDOUT"
    reader = receive if possible(session) else by_libpq
    return reader(session, statement)


def by_libpq(session: pq.abc.PGconn, statement: str) -> Iterator[Lines]:
    """The rows of COPY … TO STDOUT, some megabytes at a time, on any connection of libpq."""
    _expect(session.exec_(statement.encode()), pq.ExecStatus.COPY_OUT)
    text, sizes = bytearray(), list[int]()
    for rows in _received(session):
        text += b"".join(rows)
        sizes += map(len, rows)
        if len(text) >= _READ_BYTES:
            yield Lines.of(text, sizes)
            text, sizes = bytearray(), []
    # All results are read before the first is checked: the session is idle only then.
    for result in list(iter(session.get_result, None)):
        _expect(result, pq.ExecStatus.COMMAND_OK)
    if sizes:
        yield Lines.of(text, sizes)


def _received(session: pq.abc.PGconn) -> Iterator[list[memoryview]]:
    """The rows of a COPY, up to 65 per list. No Python statement runs per row."""
    socket = poll()
    socket.register(session.socket, POLLIN)
    received = iter(partial(session.get_copy_data, _ASYNC), _END)
    try:
        while (first := next(received, _END)) != _END:
            if first == _NOTHING_YET:
                # Waits here, not in libpq, which would keep the GIL and block all other threads.
                socket.poll(_POLL_MS)
                session.consume_input()
            else:
                yield [*map(_DATA, chain([first], takewhile(_DATA, islice(received, _READ_ROWS))))]
    except psycopg.Error as error:
        raise translate(error) from error


def _expect(result: pq.abc.PGresult, status: pq.ExecStatus) -> None:
    if result.status != status:
        state = result.error_field(pq.DiagnosticField.SQLSTATE)
        raise classify(state.decode() if state else None, result.get_error_message())
