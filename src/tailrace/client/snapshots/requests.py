"""Requests to the snapshot service, repeated until the requested snapshot is complete.

A request on `snapshot.request.TABLE` is answered with the id of a snapshot: a new one, or one that
the service is already writing. A service that restarts resumes its snapshot, or abandons it and
takes another one. A repeated request shows which: its answer has the same id, or a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

import nats.errors
import nats.js.errors
import orjson

from tailrace.client.connection import LOG, REQUEST_TIMEOUT_S, translate_errors
from tailrace.client.payload import decode
from tailrace.client.snapshots.messages import Meta, meta_subject, refusal
from tailrace.errors import SinkRefusedError, SinkUnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.client.access import Access
    from tailrace.client.names import Table
    from tailrace.snapshot.job import Form

REPEAT_S = 15.0
"""Between two requests for the same snapshot."""
MAX_SNAPSHOTS = 3
"""Snapshots that may fail before a call gives up."""
_POLL_S = 0.25
# The service looks the table up in PostgreSQL before it answers.
_ANSWER_S = 4 * REQUEST_TIMEOUT_S
# A restart of `tailrace run` takes up to half a minute, most of it for Spark.
_MAX_AWAY_S = 120.0


class SnapshotRequests:
    """The requests of one call, and the snapshots that answered them."""

    def __init__(
        self,
        access: Access,
        table: Table,
        form: Form = "rows",
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._access = access
        self._table = table
        self._clock = clock
        self._away_since: float | None = None
        self._meta_seq = 0
        """The newest metadata message that was looked at."""
        self.form: Form = form
        """The form to request; after an answer, the form that the service sends."""
        self.ids: list[str] = []
        """The snapshots that answered, the present one last."""

    async def request(self) -> str:
        """Send one request; the id of the snapshot that answers it."""
        body = b"" if self.form == "rows" else orjson.dumps({"format": self.form})
        with translate_errors("request a snapshot"):
            try:
                reply = await self._access.connection.client.request(
                    f"snapshot.request.{self._table.path}", body, timeout=_ANSWER_S
                )
            except nats.errors.NoRespondersError as error:
                raise SinkUnreachableError(
                    "no pipeline answers snapshot requests",
                    hint="Start the pipeline, with `snapshots` in its settings: tailrace run",
                ) from error
        answer = decode(reply.data, self._access.encoding)
        if "error" in answer:
            raise refusal(answer)
        if answer.get("format") != self.form:
            # Services before the form `copy` answer without a format, and send rows.
            self.form = "rows"
        return str(answer["snapshot_id"])

    async def last_meta(self) -> tuple[int, dict[str, Any]] | None:
        """The newest metadata or failure of the table in the stream, and its sequence."""
        with translate_errors("read the metadata of a snapshot"):
            try:
                message = await self._access.connection.jetstream.get_last_msg(
                    self._access.snapshots, meta_subject(self._table, self.form)
                )
            except nats.js.errors.NotFoundError:
                # No snapshot yet, or no stream yet: the first snapshot creates it.
                return None
        assert message.seq is not None
        return message.seq, decode(message.data or b"", self._access.encoding)

    async def start(self) -> str:
        """Send the first request."""
        self.ids = [await self.request()]
        return self.ids[0]

    async def complete(self) -> Meta:
        """Request a snapshot and wait until all of it is in the stream.

        | newest metadata message of the table     | then                                     |
        |------------------------------------------|------------------------------------------|
        | the one from before the request          | wait; repeat the request every REPEAT_S  |
        | metadata, of whatever snapshot           | return it: it was taken after the request|
        | failure of a snapshot that we requested  | raise it                                 |
        | failure of another snapshot              | wait                                     |
        """
        before = await self.last_meta()
        self._meta_seq = before[0] if before is not None else 0
        await self.start()
        repeat_at = self._clock() + REPEAT_S
        while True:
            meta = await self._new_meta()
            if meta is not None:
                return meta
            if self._clock() < repeat_at:
                await asyncio.sleep(_POLL_S)
                continue
            repeat_at = self._clock() + REPEAT_S
            snapshot_id = await self.repeat()
            if snapshot_id is not None and snapshot_id not in self.ids:
                self.failed(snapshot_id)

    async def _new_meta(self) -> Meta | None:
        latest = None
        with contextlib.suppress(SinkUnreachableError):
            latest = await self.last_meta()
        if latest is None or latest[0] <= self._meta_seq:
            return None
        self._meta_seq, message = latest
        if "error" not in message:
            meta = Meta.of(message)
            if meta.supersedes in self.ids:
                self.superseded(str(meta.supersedes), meta.snapshot_id)
            return meta
        if message.get("snapshot_id") in self.ids:
            raise refusal(message)
        return None

    async def repeat(self) -> str | None:
        """Repeat the request; the id of the snapshot that answers, None if no service answers."""
        try:
            snapshot_id = await self.request()
        except SinkUnreachableError as error:
            self.service_away(error)
            return None
        self.service_seen()
        return snapshot_id

    def service_away(self, error: SinkUnreachableError) -> None:
        """Note that no service answers; raise after `_MAX_AWAY_S`.

        A service that restarts resumes its snapshot, so only a long absence is an error.
        """
        now = self._clock()
        if self._away_since is None:
            self._away_since = now
        if now - self._away_since > _MAX_AWAY_S:
            raise error

    def service_seen(self) -> None:
        """Note that the service answers."""
        self._away_since = None

    def failed(self, snapshot_id: str) -> None:
        """Note that the present snapshot failed, and another one answers. Raises after too many."""
        LOG.warning(
            "snapshot.failed table=%s snapshot_id=%s replaced_by=%s",
            self._table, self.ids[-1], snapshot_id,
        )  # fmt: skip
        self.ids.append(snapshot_id)
        if len(self.ids) > MAX_SNAPSHOTS:
            raise SinkRefusedError(
                f"{MAX_SNAPSHOTS} snapshots of {self._table} failed: {', '.join(self.ids[:-1])}",
                hint="The log of the pipeline that takes them has the reason.",
            )

    def superseded(self, abandoned: str, snapshot_id: str) -> None:
        """Log that the service abandoned a snapshot for another one."""
        LOG.warning(
            "snapshot.superseded table=%s snapshot_id=%s replaced_by=%s",
            self._table, abandoned, snapshot_id,
        )  # fmt: skip
