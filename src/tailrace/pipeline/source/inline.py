"""Inline capture: capture inside a query, for notebooks and scripts without a daemon.

Capture runs as a thread of the source's planning process, which lives as long as the query. If
several queries use one log, the log's lease lets one of them capture; the others read the log, and
one of them takes over when that query ends. Publication and slot are created if they and the log
are missing.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from tailrace import config
from tailrace.capture.capture import Capture
from tailrace.errors import (
    ConfigError,
    LogFencedError,
    LogMissingError,
    TailraceError,
    TakenOverError,
)
from tailrace.log.reader import Log
from tailrace.position import Lsn
from tailrace.postgres import bootstrap
from tailrace.postgres.connection import connect
from tailrace.postgres.publication import read_publication
from tailrace.snapshot.catalog import read_names, read_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.pipeline.source.options import Options
    from tailrace.schema import Relation, TypeName

_STOP_TIMEOUT_S = 5.0
_TAKE_OVER_INTERVAL_S = 1.0
_LOG_TIMEOUT_S = 60.0
_POLL_S = 0.02


class InlineCapture:
    """A capture thread for one query."""

    def __init__(self, options: Options, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._dsn = options.dsn
        self._clock = clock
        self._config = config.load(
            None,
            {
                "source": {
                    "dsn": options.dsn,
                    "slot": options.slot,
                    "publication": options.publication,
                },
                "log": {"path": options.log},
            },
        )
        self._stopping = threading.Event()
        self._failure: TailraceError | None = None
        self._thread = threading.Thread(target=self._run, name="capture", daemon=True)

    def start(self) -> None:
        """Create what is missing, start capture, and wait until there is a log to read."""
        if not bootstrap.log_exists(self._config.log.path):
            self._bootstrap()
        self._thread.start()
        deadline = self._clock() + _LOG_TIMEOUT_S
        while not self._readable():
            self.check()
            if self._clock() > deadline:
                raise LogMissingError(
                    f"inline capture has not created a log within {_LOG_TIMEOUT_S:.0f} s"
                )
            time.sleep(_POLL_S)

    def _bootstrap(self) -> None:
        with connect(self._dsn) as connection:
            source = self._config.source
            published = read_publication(connection, source.publication)
            bootstrap.initialise(connection, self._config, all_tables=published is None)

    def _readable(self) -> bool:
        try:
            Log.open(self._config.log.path).end()
        except TailraceError:
            return False
        return True

    def check(self) -> None:
        """Raise the error that has ended capture."""
        if self._failure is not None:
            raise self._failure

    def catch_up(self, log: Log) -> None:
        """Wait until the log holds everything that is committed now."""
        with connect(self._dsn) as connection:
            row = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
            assert row is not None
        target = Lsn.parse(str(row[0]))
        while log.end().end_lsn < target:
            self.check()
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Stop capture in order: it acknowledges what is durable."""
        self._stopping.set()
        self._thread.join(_STOP_TIMEOUT_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                Capture(self._config, stopping=self._stopping.is_set).run()
            except LogFencedError as error:
                if isinstance(error, TakenOverError):
                    self._failure = error
                    return
                # Another query captures; take over when it ends.
                self._stopping.wait(_TAKE_OVER_INTERVAL_S)
            except TailraceError as error:
                self._failure = error
                return


def read_relation(options: Options) -> tuple[Relation, dict[int, TypeName]]:
    """The table of a frame as PostgreSQL's catalog describes it now, and its types."""
    with connect(options.dsn) as connection:
        matching = [
            name
            for name in read_names(connection)
            if options.tables.match(name.namespace, name.name)
        ]
        if len(matching) != 1:
            what = "it matches no table" if not matching else "it matches several tables"
            raise ConfigError(f"table {options.table!r}: {what}", hint="Write schema.table.")
        table = read_table(connection, matching[0])
    return table.relation, table.types
