"""A table's rows at one moment, on request.

Nothing is handed on before the snapshot's metadata say that it is whole. So one that is given up on
the way, and superseded by another, has shown nobody a row: starting over means waiting for the
other one.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

import nats.errors
import nats.js.errors
import orjson
import zstandard

from tailrace.client.connection import LOG, PATIENCE_S, failures
from tailrace.client.iteration import Iteration
from tailrace.client.payload import decoded
from tailrace.client.readers import Ordered, Start
from tailrace.errors import (
    ConfigError,
    MalformedError,
    PositionLostError,
    SinkRefusedError,
    SinkUnreachableError,
)
from tailrace.position import Lsn
from tailrace.snapshot.job import chunk_prefix, meta_prefix
from tailrace.visibility import Visibility

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from tailrace.client.access import Access
    from tailrace.client.names import Table
    from tailrace.client.payload import Encoding
    from tailrace.client.readers import Arrival
    from tailrace.snapshot.job import Form

_LOOK_S = 0.25
ASK_AGAIN_S = 15.0
SERVICE_AWAY_S = 120.0
ATTEMPTS = 3
CHUNKS = 16
"""Asked for at a time: they have up to a megabyte each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """What a snapshot says of itself."""

    snapshot_id: str
    lsn: Lsn
    """Everything the snapshot sees was committed before."""
    visibility: Visibility
    """Which transactions it sees."""
    timestamp: datetime
    since: datetime | None
    """Changes it does not see were committed after this. None: not known."""
    batch_count: int
    row_count: int
    supersedes: str | None

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Self:
        """Read the message on `init.meta.TABLE`."""
        try:
            since = message["since"]
            return cls(
                snapshot_id=message["snapshot_id"],
                lsn=Lsn.parse(message["lsn"]),
                visibility=Visibility.parse(message["visibility"]),
                timestamp=datetime.fromtimestamp(message["timestamp"], UTC),
                since=datetime.fromisoformat(since) if since else None,
                batch_count=message["batch_count"],
                row_count=message["row_count"],
                supersedes=message["supersedes"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise MalformedError(f"a snapshot's metadata are not understood: {error!r}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Some thousand rows of a snapshot, not looked at yet."""

    snapshot_id: str
    number: int
    payload: bytes
    compressed: bool = False
    dictionary: zstandard.ZstdCompressionDict | None = None
    encoding: Encoding | None = None
    columns: tuple[str, ...] | None = None
    """Of rows in the text that COPY reads; None: the chunk is a message."""

    def plain(self) -> bytes:
        """The message as it was before it was compressed."""
        if not self.compressed:
            return self.payload
        try:
            return zstandard.ZstdDecompressor(dict_data=self.dictionary).decompress(self.payload)
        except zstandard.ZstdError as error:
            raise MalformedError(f"a chunk cannot be decompressed: {error}") from error

    def rows(self) -> list[dict[str, Any]]:
        """The rows as the message has them, without the types of the table's schema."""
        found: list[dict[str, Any]] = decoded(self.plain(), self.encoding)["data"]
        return found


class Snapshot(Iteration[dict[str, Any], dict[str, Any]]):
    """The rows of one table. `meta` is known from the first row on."""

    def __init__(self, access: Access, table: Table, *, form: Form = "rows") -> None:
        super().__init__(access)
        self._table = table
        self.form: Form = form
        """What is asked for, and then what is answered: an older service knows rows only."""
        self.meta: Meta | None = None

    async def _batches(self) -> AsyncGenerator[list[dict[str, Any]]]:
        self.meta = meta = await self.complete()
        async with contextlib.aclosing(self.chunks(meta)) as chunks:
            async for rows in chunks:
                yield rows

    def _handed(self, item: dict[str, Any]) -> dict[str, Any]:
        return item

    async def complete(self) -> Meta:
        """Ask for a snapshot and wait until all of it is in the stream."""
        before = await self.last_meta()
        asked = [await self.ask()]
        loop = asyncio.get_running_loop()
        ask_at, away_since = loop.time() + ASK_AGAIN_S, 0.0
        while True:
            found = None
            with contextlib.suppress(SinkUnreachableError):
                found = await self.last_meta()
            if found is not None and (before is None or found[0] > before[0]):
                before, message = found, found[1]
                if "error" not in message:
                    meta = Meta.of(message)
                    self._tell(meta, asked)
                    return meta
                if message.get("snapshot_id") in asked:
                    raise refusal(message)
            if loop.time() < ask_at:
                await asyncio.sleep(_LOOK_S)
                continue
            ask_at = loop.time() + ASK_AGAIN_S
            try:
                again = await self.ask()
            except SinkUnreachableError:
                # Whoever makes it may be starting again; it then goes on with what it has.
                away_since = away_since or loop.time()
                if loop.time() - away_since > SERVICE_AWAY_S:
                    raise
                continue
            away_since = 0.0
            if again not in asked:
                LOG.warning("snapshot %s of %s failed, now %s", asked[-1], self._table, again)
                asked.append(again)
            if len(asked) > ATTEMPTS:
                raise SinkRefusedError(
                    f"snapshots of {self._table} fail: {', '.join(asked[:-1])}",
                    hint="The log of the pipeline that makes them says why.",
                )

    def _tell(self, meta: Meta, asked: list[str]) -> None:
        if meta.supersedes in asked:
            LOG.warning(
                "snapshot %s of %s was given up, %s has taken its place",
                meta.supersedes, self._table, meta.snapshot_id,
            )  # fmt: skip

    async def ask(self) -> str:
        """Send a request; the id of the snapshot that will answer it."""
        subject = f"snapshot.request.{self._table.path}"
        with failures("ask for a snapshot"):
            try:
                asked = b"" if self.form == "rows" else orjson.dumps({"format": self.form})
                reply = await self._access.connection.client.request(
                    subject, asked, timeout=4 * PATIENCE_S
                )
            except nats.errors.NoRespondersError as error:
                raise SinkUnreachableError(
                    "nobody answers requests for snapshots",
                    hint="Start the pipeline, with `snapshots` in its settings: tailrace run",
                ) from error
        answer = decoded(reply.data, self._access.encoding)
        if "error" in answer:
            raise refusal(answer)
        if answer.get("format") != self.form:
            self.form = "rows"
        return str(answer["snapshot_id"])

    async def last_meta(self) -> tuple[int, dict[str, Any]] | None:
        """The youngest metadata in the stream, or a failure in their place; and where it is."""
        with failures("look for a snapshot"):
            try:
                found = await self._access.connection.jetstream.get_last_msg(
                    self._access.snapshots, meta_subject(self._table, self.form)
                )
            except nats.js.errors.NotFoundError:
                # No snapshot yet, or not even the stream: the first one makes it.
                return None
        assert found.seq is not None
        return found.seq, decoded(found.data or b"", self._access.encoding)

    async def chunk(self, snapshot_id: str, arrival: Arrival) -> Chunk:
        """A message as a chunk, with what it takes to open it."""
        encoding = arrival.headers.get("Content-Encoding", "")
        if encoding not in ("", "zstd"):
            raise MalformedError(f"a chunk is compressed with {encoding!r}, which is not known")
        key = arrival.headers.get("Tailrace-Dictionary", "")
        columns = arrival.headers.get("Tailrace-Columns")
        return Chunk(
            snapshot_id=snapshot_id,
            number=int(arrival.subject.rpartition(".")[2]),
            payload=arrival.data,
            compressed=bool(encoding),
            dictionary=await self._access.dictionary(key) if key else None,
            encoding=self._access.encoding,
            columns=None if columns is None else tuple(orjson.loads(columns)),
        )

    async def chunks(self, meta: Meta) -> AsyncGenerator[list[dict[str, Any]]]:
        """The rows, thousands at a time."""
        typing = await self._access.typing(self._table)
        connection, stream = self._access.connection, self._access.snapshots
        subject = chunk_subject(self._table, meta.snapshot_id, self.form)
        reader = Ordered(connection, stream, subject, start=Start(), batch=CHUNKS)
        numbers: set[int] = set()
        rows = 0
        try:
            while len(numbers) < meta.batch_count:
                arrivals = await reader.next()
                for arrival in arrivals:
                    chunk = await self.chunk(meta.snapshot_id, arrival)
                    if chunk.number in numbers:
                        continue
                    numbers.add(chunk.number)
                    found = chunk.rows()
                    rows += len(found)
                    yield [typing.apply(row) for row in found]
                if len(numbers) == meta.batch_count or (arrivals and arrivals[-1].pending):
                    continue
                # In a cluster a consumer may live with a replica that is behind.
                if await connection.message(stream, reader.place + 1, subject) is None:
                    raise incomplete(meta, len(numbers))
        finally:
            await reader.close()
        if rows != meta.row_count:
            raise incomplete(meta, len(numbers))


def chunk_subject(table: Table, snapshot_id: str, form: Form) -> str:
    """Where the chunks of a snapshot are."""
    return f"{chunk_prefix(form)}.{table.path}.{snapshot_id}.*"


def meta_subject(table: Table, form: Form) -> str:
    """Where a table's snapshots say that they are whole."""
    return f"{meta_prefix(form)}.{table.path}"


def refusal(message: Mapping[str, Any]) -> ConfigError | SinkRefusedError:
    """What the service says is wrong, as an error of ours."""
    kind = ConfigError if message.get("code") == ConfigError.code else SinkRefusedError
    return kind(str(message["error"]), hint=str(message.get("hint", "")))


def incomplete(meta: Meta, found: int) -> PositionLostError:
    """The stream does not have all chunks."""
    return PositionLostError(
        f"snapshot {meta.snapshot_id} has {meta.batch_count} chunks, the stream only {found}",
        hint="The stream has let go of some. Ask again, and let the stream keep more.",
    )
