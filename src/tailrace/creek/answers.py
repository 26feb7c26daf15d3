"""Schemas on request, by fingerprint, within a second.

A schema in memory is answered at once. Otherwise the rest of the log and `_creek.avro_schemas` are
searched concurrently, for a short time: PostgreSQL may be unreachable.

A producer that does not know the schema does not reply, as in Creek. Several producers may receive
one request, and Creek's clients take any reply for a schema: after an error they drop the message.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from typing import TYPE_CHECKING

import structlog

from tailrace.creek.sql import find
from tailrace.creek.versions import document
from tailrace.creek.worker import Worker
from tailrace.errors import PostgresUnreachableError, TailraceError
from tailrace.jetstream.requests import Reply, refusal

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from tailrace.creek.sql import StoredSchema
    from tailrace.creek.versions import Versions
    from tailrace.encode.creek.names import StreamLayout
    from tailrace.postgres.session import Session

_SEARCH_S = 0.4
_LAST_SEARCH_S = 0.2
_SEARCH_AGAIN_S = 0.5
"""When the log is searched once more: capture may be about to append the schema."""
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{11}=?")


def fingerprint_of(request: bytes) -> str | None:
    """The fingerprint in a request, normalised; None if the request is invalid.

    >>> fingerprint_of(b"Sykce18MgAQ="), fingerprint_of(b"Sykce18MgAQ"), fingerprint_of(b"?")
    ('Sykce18MgAQ=', 'Sykce18MgAQ=', None)
    """
    text = request.strip()
    if _BASE64.fullmatch(text) is None:
        return None
    try:
        raw = base64.b64decode(text.rstrip(b"=") + b"=", altchars=b"-_")
    except binascii.Error:
        return None
    return base64.urlsafe_b64encode(raw).decode()


class Answers:
    """Answers requests from memory, the log and `_creek.avro_schemas`."""

    def __init__(self, layout: StreamLayout, versions: Versions, session: Session) -> None:
        self.subjects = layout.schema_requests
        self._versions = versions
        self._session = session
        self._log_worker = Worker("creek schemas: log")
        self._table_worker = Worker("creek schemas: table")

    def refusal(self, error: TailraceError) -> None:
        """No reply for a bug, which the listener has logged."""
        del error

    async def answer(self, subject: str, request: bytes) -> Reply | None:
        """The reply to a request; None if the schema is unknown."""
        del subject
        fingerprint = fingerprint_of(request)
        if fingerprint is None:
            return refusal(
                "the request is not a fingerprint: 8 bytes in base64",
                code="MALFORMED",
                status=400,
                hint="A message has it after the bytes C3 01, and as text in `fingerprint`.",
            )
        clock = asyncio.get_running_loop()
        began = clock.time()
        schema = self._versions.find(fingerprint) or await self._search(fingerprint)
        if schema is None:
            await asyncio.sleep(began + _SEARCH_AGAIN_S - clock.time())
            schema = await self._within(_LAST_SEARCH_S, self._in_log(fingerprint))
        if schema is None:
            structlog.get_logger().warning("creek.schema_unknown", fingerprint=fingerprint)
            return None
        return Reply(document(schema))

    async def _search(self, fingerprint: str) -> StoredSchema | None:
        searches = [
            asyncio.create_task(self._within(_SEARCH_S, search))
            for search in (self._in_log(fingerprint), self._in_table(fingerprint))
        ]
        try:
            for search in asyncio.as_completed(searches):
                if (schema := await search) is not None:
                    return schema
            return None
        finally:
            for task in searches:
                task.cancel()

    @staticmethod
    async def _within(
        seconds: float, search: Awaitable[StoredSchema | None]
    ) -> StoredSchema | None:
        try:
            return await asyncio.wait_for(search, seconds)
        except TimeoutError:
            return None

    async def _in_log(self, fingerprint: str) -> StoredSchema | None:
        await self._log_worker.run(self._versions.read)
        return self._versions.find(fingerprint)

    async def _in_table(self, fingerprint: str) -> StoredSchema | None:
        schema = await self._table_worker.run(lambda: self._read_table(fingerprint))
        return None if schema is None else self._versions.remember(schema)

    def _read_table(self, fingerprint: str) -> StoredSchema | None:
        """The schema in the table; None if the table cannot be read."""
        for _ in range(2):
            try:
                with self._session.use() as connection:
                    return find(connection, fingerprint)
            except PostgresUnreachableError:
                # The server may have restarted since: the second attempt opens a new connection.
                self._session.close()
            except TailraceError:
                return None
        return None
