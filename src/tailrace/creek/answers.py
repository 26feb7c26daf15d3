"""Schemas on request: a fingerprint comes in, its schema goes out, within a second.

What is in memory is answered at once. Otherwise the log is read on and `_creek.avro_schemas` asked,
side by side and not for long: PostgreSQL may be away. Several producers may hear one request, and
the first answer is the one that counts, so a producer that does not know waits until one that does
has answered.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from typing import TYPE_CHECKING

from tailrace.creek.sql import find
from tailrace.creek.versions import document
from tailrace.creek.worker import Worker
from tailrace.errors import PostgresUnreachableError, TailraceError
from tailrace.jetstream.requests import Reply, refusal

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from tailrace.creek.sql import StoredSchema
    from tailrace.creek.versions import Versions
    from tailrace.postgres.session import Session

REQUESTS = ("_schema", "_schemas")
"""The client's own subject, and the one of its documentation."""
_SEARCH_S = 0.4
_LAST_S = 0.2
UNKNOWN_S = 0.5
"""When a producer that does not know says so."""
_LETTERS = re.compile(rb"[A-Za-z0-9+/_-]{11}=?")


def fingerprint_of(said: bytes) -> str | None:
    """The fingerprint that a request names, as schemas are known by it; None if it is none.

    >>> fingerprint_of(b"Sykce18MgAQ="), fingerprint_of(b"Sykce18MgAQ"), fingerprint_of(b"?")
    ('Sykce18MgAQ=', 'Sykce18MgAQ=', None)
    """
    text = said.strip()
    if _LETTERS.fullmatch(text) is None:
        return None
    try:
        raw = base64.b64decode(text.rstrip(b"=") + b"=", altchars=b"-_")
    except binascii.Error:
        return None
    return base64.urlsafe_b64encode(raw).decode()


class Answers:
    """Answers requests from the log's schemas and the table's."""

    def __init__(self, namespace: str, versions: Versions, session: Session) -> None:
        self.subjects = tuple(f"{namespace}.{request}" for request in REQUESTS)
        self._versions = versions
        self._session = session
        self._reading = Worker("creek schemas: log")
        self._asking = Worker("creek schemas: table")

    def refusal(self, error: TailraceError) -> Reply:
        """A fault of our own."""
        return refusal(str(error), code=error.code, status=500, hint=error.hint)

    async def answer(self, subject: str, said: bytes) -> Reply:
        """The reply to what a request says."""
        del subject
        fingerprint = fingerprint_of(said)
        if fingerprint is None:
            return refusal(
                "a request for a schema is its fingerprint: 8 bytes in base64",
                code="MALFORMED",
                status=400,
                hint="Messages have it behind C3 01, and as text in `fingerprint`.",
            )
        clock = asyncio.get_running_loop()
        began = clock.time()
        found = self._versions.find(fingerprint) or await self._searched(fingerprint)
        if found is None:
            await asyncio.sleep(began + UNKNOWN_S - clock.time())
            found = await self._within(_LAST_S, self._in_log(fingerprint))
        if found is None:
            return refusal(
                f"there is no schema {fingerprint} here",
                code="NOT_FOUND",
                status=404,
                hint="Ask the producer whose message has it; another namespace may be its own.",
            )
        return Reply(document(found))

    async def _searched(self, fingerprint: str) -> StoredSchema | None:
        searches = [
            asyncio.create_task(self._within(_SEARCH_S, search))
            for search in (self._in_log(fingerprint), self._in_table(fingerprint))
        ]
        try:
            for search in asyncio.as_completed(searches):
                if (found := await search) is not None:
                    return found
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
        await self._reading.do(self._versions.read)
        return self._versions.find(fingerprint)

    async def _in_table(self, fingerprint: str) -> StoredSchema | None:
        found = await self._asking.do(lambda: self._ask(fingerprint))
        return None if found is None else self._versions.remember(found)

    def _ask(self, fingerprint: str) -> StoredSchema | None:
        """What the table has; nothing where it cannot be read."""
        for _ in range(2):
            try:
                with self._session.use() as connection:
                    return find(connection, fingerprint)
            except PostgresUnreachableError:
                # Perhaps the server was started again since: the next connection is a new one.
                self._session.close()
            except TailraceError:
                return None
        return None
