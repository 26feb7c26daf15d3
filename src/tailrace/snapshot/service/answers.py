"""What is asked for, and what is answered: in Tailrace's own words, or in Creek's.

Several who ask for one table while its snapshot is on its way get the same one.
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
from tailrace.postgres.publication import TableName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tailrace.config import Pipeline
    from tailrace.snapshot.job import Form, FormatName
    from tailrace.snapshot.service.catalog import Listing, PublishedTables
    from tailrace.snapshot.service.record import Record

    Take = Callable[[TableName, FormatName, Listing], Record]

_LOOKS = 4
_PATIENCE_S = 0.5
"""Creek's clients wait for a second."""
_OTHERS_S = 0.5
"""The first answer counts, and somebody else may have a better one."""
_NAMED, _TEXT = 50, 1000
_STATUS: dict[type[TailraceError], int] = {MalformedError: 400, ConfigError: 404}


class Answers(ABC):
    """Answers to requests. `take` writes an order down, or finds the one that is on its way."""

    subjects: tuple[str, ...]
    """Where requests come in."""

    def __init__(self, pipeline: Pipeline, catalog: PublishedTables, take: Take) -> None:
        assert pipeline.snapshots is not None
        self._pipeline = pipeline
        self._request = pipeline.snapshots.request
        self._catalog = catalog
        self._take = take

    @abstractmethod
    def open(self) -> None:
        """Somebody may ask from now on."""

    @abstractmethod
    async def answer(self, subject: str, said: bytes) -> Reply:
        """What to tell whoever asks."""

    @abstractmethod
    def refusal(self, error: TailraceError) -> Reply:
        """How an error is told."""

    @abstractmethod
    def close(self) -> None:
        """Nobody will ask any more."""


class Plain(Answers):
    """The table is in the subject, and the answer has the snapshot's id."""

    def __init__(self, pipeline: Pipeline, catalog: PublishedTables, take: Take) -> None:
        super().__init__(pipeline, catalog, take)
        self.subjects = (f"{self._request}.>",)

    def open(self) -> None:
        """Nothing is needed."""

    async def answer(self, subject: str, said: bytes) -> Reply:
        """The snapshot that there will be. It may take its time.

        A message that is no request of ours asks for rows: anything will do for that.
        """
        path = subject.removeprefix(f"{self._request}.")
        try:
            record = await asyncio.to_thread(self._requested, path, _form(said))
        except TailraceError as error:
            structlog.get_logger().warning("snapshot.refused", asked=path, reason=str(error))
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
                f"there is no table {path} to take a snapshot of",
                hint=_there_are(tables),
            )
        return self._take(tables[path], form, listing)

    def _listing(self) -> Listing:
        try:
            return self._catalog.listing()
        except PostgresUnreachableError:
            if self._catalog.known is None:
                raise
            return self._catalog.known

    def refusal(self, error: TailraceError) -> Reply:
        """The error instead of an id."""
        return self._encoded({"error": str(error), "code": error.code, "hint": error.hint})

    def close(self) -> None:
        """Nothing is kept."""

    def _encoded(self, fields: dict[str, Any]) -> Reply:
        plain = self._pipeline.format == "json"
        return Reply(orjson.dumps(fields) if plain else ormsgpack.packb(fields))


def _there_are(names: Iterable[str]) -> str:
    """A hint that fits in a message, however many there are."""
    found = sorted(names)
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return f"There are {', '.join(found[:_NAMED]) or 'none'}{more}."


def _form(said: bytes) -> Form:
    try:
        asked = orjson.loads(said)
    except orjson.JSONDecodeError:
        return "rows"
    return "copy" if isinstance(asked, dict) and asked.get("format") == "copy" else "rows"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of Creek's."""

    database: str
    table: TableName

    @classmethod
    def of(cls, said: bytes) -> Self:
        """Read one.

        >>> Asked.of(b'{"database": "shop", "namespace": "public", "table": "items"}')
        Asked(database='shop', table=TableName(namespace='public', name='items'))
        """
        hint = 'Send {"database": "...", "namespace": "...", "table": "..."}.'
        try:
            fields = orjson.loads(said)
        except orjson.JSONDecodeError as error:
            raise MalformedError(f"the request is no JSON: {error}", hint=hint) from error
        match fields:
            case {"database": str(database), "namespace": str(namespace), "table": str(table)}:
                return cls(database, TableName(namespace, table))
        raise MalformedError("the request lacks database, namespace or table", hint=hint)


class CreekAnswers(Answers):
    """The table is in the message, and the answer is the topic; all of it within a second.

    Several producers may hear one request. The one whose database it is answers at once; the others
    wait until that one must have answered, so that nobody is left without an answer.
    """

    def __init__(self, pipeline: Pipeline, catalog: PublishedTables, take: Take) -> None:
        super().__init__(pipeline, catalog, take)
        self.subjects = (self._request,)
        self._looking = ThreadPoolExecutor(_LOOKS, thread_name_prefix="snapshots catalog")

    def open(self) -> None:
        """Have something that is known, for when PostgreSQL is too busy to tell."""
        self._looking.submit(self._catalog.listing)

    async def answer(self, subject: str, said: bytes) -> Reply:
        """The topic that the snapshot will be on."""
        del subject
        clock = asyncio.get_running_loop().time
        others = clock() + _OTHERS_S
        try:
            asked = Asked.of(said)
            listing, fresh = await self._listing()
            if asked.database == listing.database:
                _check(asked, listing, fresh=fresh)
                record = await asyncio.to_thread(self._take, asked.table, "creek", listing)
                return Reply(record.topic.encode())
            error: TailraceError = ConfigError(
                f"there is no database {asked.database} here",
                hint=f"This producer has {listing.database}.",
            )
        except (MalformedError, ConfigError) as found:
            return self.refusal(found)
        except TailraceError as found:
            error = found
        await asyncio.sleep(others - clock())
        return self.refusal(error)

    async def _listing(self) -> tuple[Listing, bool]:
        """What is published now, or else was when PostgreSQL last answered; whether it is now."""
        loop = asyncio.get_running_loop()
        look = loop.run_in_executor(self._looking, self._catalog.listing)
        try:
            return await asyncio.wait_for(look, _PATIENCE_S), True
        except (TimeoutError, PostgresUnreachableError) as error:
            if self._catalog.known is None:
                said = str(error) or f"PostgreSQL has not answered for {_PATIENCE_S} s"
                raise PostgresUnreachableError(said) from error
            return self._catalog.known, False

    def close(self) -> None:
        """Leave those alone that wait for PostgreSQL."""
        self._looking.shutdown(wait=False, cancel_futures=True)

    def refusal(self, error: TailraceError) -> Reply:
        """The error in Creek's words, and in those of NATS services."""
        structlog.get_logger().warning("snapshot.refused", code=error.code, reason=str(error))
        status = _STATUS.get(type(error), 503)
        return refusal(str(error)[:_TEXT], code=error.code, status=status, hint=error.hint)


def _check(asked: Asked, listing: Listing, *, fresh: bool) -> None:
    if asked.table in listing.tables:
        return
    if not fresh:
        raise PostgresRefusedError(f"{asked.table} was not published when PostgreSQL last answered")
    raise ConfigError(
        f"there is no table {asked.table} to take a snapshot of",
        hint=_there_are(map(str, listing.tables)),
    )
