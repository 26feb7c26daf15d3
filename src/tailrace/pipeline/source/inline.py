"""Capture inside a query: a DSN instead of a log, for notebooks and scripts without a daemon.

It runs as a thread of the source's own process, which lives as long as the query. The lease makes
sure that one query of many on the same log captures; the others read along, and take over when it
ends. Publication and slot are made when neither they nor a log exist.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from tailrace import config
from tailrace.capture.capture import Capture
from tailrace.errors import ConfigError, LogFencedError, LogMissingError, TailraceError
from tailrace.log.reader import Log
from tailrace.position import Lsn
from tailrace.postgres import bootstrap
from tailrace.postgres.connection import connect
from tailrace.postgres.publication import read_publication
from tailrace.snapshot.table import read_names, read_table

if TYPE_CHECKING:
    from tailrace.pipeline.source.options import Options
    from tailrace.schema import Relation, TypeName

_STOP_S = 5.0
_TAKE_OVER_S = 1.0
_LOG_S = 60.0


class InlineCapture:
    """A capture thread with a life of its own."""

    def __init__(self, options: Options) -> None:
        self._dsn = options.dsn
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
        """Make what is missing, begin to capture, and wait until there is a log to read."""
        if not bootstrap.log_exists(self._config.log.path):
            self._bootstrap()
        self._thread.start()
        deadline = time.monotonic() + _LOG_S
        while not self._readable():
            self.check()
            if time.monotonic() > deadline:
                raise LogMissingError(f"no log appeared within {_LOG_S:.0f} s")
            time.sleep(0.02)

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
        """Raise what has ended the capture for good."""
        if self._failure is not None:
            raise self._failure

    def catch_up(self, log: Log) -> None:
        """Wait until everything committed by now is in the log."""
        with connect(self._dsn) as connection:
            row = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
            assert row is not None
        target = Lsn.parse(str(row[0]))
        while log.end().end_lsn < target:
            self.check()
            time.sleep(0.02)

    def stop(self) -> None:
        """End in order; what is durable is acknowledged."""
        self._stopping.set()
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                Capture(self._config, stopping=self._stopping.is_set).run()
            except LogFencedError:
                self._stopping.wait(_TAKE_OVER_S)
            except TailraceError as error:
                self._failure = error
                return


def read_relation(options: Options) -> tuple[Relation, dict[int, TypeName]]:
    """The table of a frame as the catalog describes it now, and its types."""
    with connect(options.dsn) as connection:
        found = [
            name
            for name in read_names(connection)
            if options.tables.match(name.namespace, name.name)
        ]
        if len(found) != 1:
            what = "there is no such table" if not found else "it fits several tables"
            raise ConfigError(f"table {options.table!r}: {what}", hint="Write schema.table.")
        table = read_table(connection, found[0])
    return table.relation, table.types
