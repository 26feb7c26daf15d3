"""Requests for snapshots and their replies, in Tailrace's form or in Creek's.

Requests for a table whose snapshot is queued or running share that snapshot.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import orjson
import ormsgpack
import structlog

from tailrace.errors import (
    ConfigError,
    MalformedError,
    PostgresRefusedError,
    PostgresUnreachableError,
    TailraceError,
)
from tailrace.jetstream.names import table_path
from tailrace.jetstream.requests import Reply, refusal
from tailrace.postgres.names import TableName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tailrace.config import Pipeline
    from tailrace.snapshot.job import Form, FormatName
    from tailrace.snapshot.service.catalog import Listing, PublishedTables
    from tailrace.snapshot.service.record import Record

    Submit = Callable[[TableName, FormatName, Listing], Record]

_CATALOG_THREADS = 4
_CATALOG_TIMEOUT_S = 0.5
"""Creek's clients wait one second for a reply."""
_REFUSAL_DELAY_S = 0.5
"""A client takes the first reply: a producer that has the table must be able to reply before."""
_PLAIN_REFUSAL_DELAY_S = 3.0
"""The same for clients of Tailrace, which wait at least five seconds."""
_MAX_NAMES, _MAX_TEXT = 50, 1000
_STATUS: dict[type[TailraceError], int] = {MalformedError: 400, ConfigError: 404}


class Answers(ABC):
    """Replies to requests. `submit` queues a snapshot, or returns one that can be shared."""

    subjects: tuple[str, ...]
    """The subjects of requests."""

    def __init__(self, pipeline: Pipeline, catalog: PublishedTables, submit: Submit) -> None:
        assert pipeline.snapshots is not None
        self._pipeline = pipeline
        self._request = pipeline.snapshots.request
        self._catalog = catalog
        self._submit = submit

    @abstractmethod
    def open(self) -> None:
        """Prepare for requests."""

    @abstractmethod
    async def answer(self, subject: str, body: bytes) -> Reply:
        """The reply to a request."""

    @abstractmethod
    def refusal(self, error: TailraceError) -> Reply:
        """An error as a reply."""

    @abstractmethod
    def close(self) -> None:
        """Release what `open` acquired: no request follows."""


class PlainAnswers(Answers):
    """Tailrace's form: the table is in the subject, and the reply holds the snapshot's id.

    Several pipelines may receive one request, and a client takes the first reply. A pipeline that
    lacks the table, or cannot know whether it has it, therefore refuses late, after every pipeline
    that has it.
    """

    def __init__(self, pipeline: Pipeline, catalog: PublishedTables, submit: Submit) -> None:
        super().__init__(pipeline, catalog, submit)
        self.subjects = (f"{self._request}.>",)

    def open(self) -> None:
        """Nothing to prepare."""

    async def answer(self, subject: str, body: bytes) -> Reply:
        """The id and the state of the snapshot. The reply waits for PostgreSQL.

        The body is optional: `{"format": "copy"}` requests COPY text, anything else rows.
        """
        clock = asyncio.get_running_loop().time
        refuse_at = clock() + _PLAIN_REFUSAL_DELAY_S
        path = subject.removeprefix(f"{self._request}.")
        try:
            record = await asyncio.to_thread(self._requested, path, _form(body))
        except TailraceError as error:
            await asyncio.sleep(refuse_at - clock())
            structlog.get_logger().warning(
                "snapshot.request_refused", table=path, code=error.code, reason=str(error)
            )
            return self.refusal(error)
        return self._encoded(
            {
                "snapshot_id": record.id,
                "table": record.table.name,
                "schema": record.table.namespace,
                "format": record.form,
                "state": record.state,
            }
        )

    def _requested(self, path: str, form: Form) -> Record:
        listing = self._listing()
        tables = {table_path(name.namespace, name.name): name for name in listing.tables}
        if path not in tables:
            raise ConfigError(
                f"the pipeline has no published table {path}",
                hint=_available(tables),
            )
        return self._submit(tables[path], form, listing)

    def _listing(self) -> Listing:
        try:
            return self._catalog.listing()
        except PostgresUnreachableError:
            if self._catalog.last_listing is None:
                raise
            return self._catalog.last_listing

    def refusal(self, error: TailraceError) -> Reply:
        """The error in place of the id."""
        return self._encoded({"error": str(error), "code": error.code, "hint": error.hint})

    def close(self) -> None:
        """Nothing to release."""

    def _encoded(self, fields: dict[str, Any]) -> Reply:
        json = self._pipeline.format == "json"
        return Reply(orjson.dumps(fields) if json else ormsgpack.packb(fields))


def _available(names: Iterable[str]) -> str:
    """A hint with the available tables, short enough for a message.

    >>> _available(["b", "a"]), _available([])
    ('Available tables: a, b.', 'Available tables: none.')
    """
    tables = sorted(names)
    more = f" and {len(tables) - _MAX_NAMES} more" if len(tables) > _MAX_NAMES else ""
    return f"Available tables: {', '.join(tables[:_MAX_NAMES]) or 'none'}{more}."


def _form(body: bytes) -> Form:
    """The requested format.

    >>> _form(b'{"format": "copy"}'), _form(b'{"format": "csv"}'), _form(b""), _form(b"[1]")
    ('copy', 'rows', 'rows', 'rows')
    """
    try:
        request = orjson.loads(body)
    except orjson.JSONDecodeError:
        return "rows"
    return "copy" if isinstance(request, dict) and request.get("format") == "copy" else "rows"


@dataclass(frozen=True, slots=True)
class CreekRequest:
    """The body of a Creek client's request."""

    database: str
    table: TableName

    @classmethod
    def parse(cls, body: bytes) -> Self:
        """Read a request; MalformedError for anything else.

        >>> CreekRequest.parse(b'{"database": "shop", "namespace": "public", "table": "items"}')
        CreekRequest(database='shop', table=TableName(namespace='public', name='items'))
        """
        hint = 'Send {"database": "...", "namespace": "...", "table": "..."}.'
        try:
            fields = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise MalformedError(f"the request is not JSON: {error}", hint=hint) from error
        match fields:
            case {"database": str(database), "namespace": str(namespace), "table": str(table)}:
                return cls(database, TableName(namespace, table))
        raise MalformedError("the request lacks database, namespace or table", hint=hint)


class CreekAnswers(Answers):
    """Creek's form: the table is in the body, and the reply is the topic, within one second.

    Several producers may receive one request. The producer of the requested database replies at
    once. The others send their refusal later, so that the client gets it only if no producer has
    the database.
    """

    def __init__(self, pipeline: Pipeline, catalog: PublishedTables, submit: Submit) -> None:
        super().__init__(pipeline, catalog, submit)
        self.subjects = (self._request,)
        self._executor = ThreadPoolExecutor(
            _CATALOG_THREADS, thread_name_prefix="snapshots catalog"
        )

    def open(self) -> None:
        """Read the catalog once: its listing is used while PostgreSQL does not answer in time."""
        self._executor.submit(self._catalog.listing)

    async def answer(self, subject: str, body: bytes) -> Reply:
        """The topic of the snapshot."""
        del subject
        clock = asyncio.get_running_loop().time
        refuse_at = clock() + _REFUSAL_DELAY_S
        try:
            request = CreekRequest.parse(body)
            listing, fresh = await self._listing()
            if request.database == listing.database:
                _check(request, listing, fresh=fresh)
                record = await asyncio.to_thread(self._submit, request.table, "creek", listing)
                return Reply(record.topic.encode())
            error: TailraceError = ConfigError(
                f"unknown database {request.database}",
                hint=f"This producer serves the database {listing.database}.",
            )
        except (MalformedError, ConfigError) as refused:
            return self.refusal(refused)
        except TailraceError as refused:
            error = refused
        await asyncio.sleep(refuse_at - clock())
        return self.refusal(error)

    async def _listing(self) -> tuple[Listing, bool]:
        """The listing and True; the last listing and False if PostgreSQL does not answer."""
        loop = asyncio.get_running_loop()
        reading = loop.run_in_executor(self._executor, self._catalog.listing)
        try:
            return await asyncio.wait_for(reading, _CATALOG_TIMEOUT_S), True
        except (TimeoutError, PostgresUnreachableError) as error:
            if self._catalog.last_listing is None:
                reason = str(error) or f"PostgreSQL did not answer within {_CATALOG_TIMEOUT_S} s"
                raise PostgresUnreachableError(reason) from error
            return self._catalog.last_listing, False

    def close(self) -> None:
        """Cancel pending catalog reads, without waiting for running ones."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def refusal(self, error: TailraceError) -> Reply:
        """The error as a reply of a NATS service."""
        structlog.get_logger().warning(
            "snapshot.request_refused", code=error.code, reason=str(error)
        )
        status = _STATUS.get(type(error), 503)
        return refusal(str(error)[:_MAX_TEXT], code=error.code, status=status, hint=error.hint)


def _check(request: CreekRequest, listing: Listing, *, fresh: bool) -> None:
    if request.table in listing.tables:
        return
    if not fresh:
        raise PostgresRefusedError(
            f"{request.table} was not published when PostgreSQL last answered"
        )
    raise ConfigError(
        f"the pipeline has no published table {request.table}",
        hint=_available(map(str, listing.tables)),
    )
