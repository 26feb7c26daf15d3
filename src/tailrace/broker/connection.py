"""One client: frames in, frames out, in order.

Requests are begun in the order they come, each in a task of its own, and answered in that order: a
client may send the next batch before the last one is durable. Before the login there is one request
at a time, small, and of few kinds.

A connection notes when it began to wait for what; the server looks at all of them once in a while,
which costs less than a timer a request.
"""

from __future__ import annotations

import asyncio
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from tailrace.broker import wire
from tailrace.broker.api import (
    API_VERSIONS,
    APIS,
    LEAST_VERSIONS,
    LOGIN,
    MOST_VERSIONS,
    PRODUCE,
    Api,
    Call,
    served,
)
from tailrace.broker.auth.login import Login
from tailrace.broker.limits import Share
from tailrace.errors import MalformedError

if TYPE_CHECKING:
    from tailrace.broker.broker import Broker

_LENGTH = struct.Struct(">i")
_IN_FLIGHT = 32
_SMALL = 4 << 10
"""Of a request that does not wait for memory: heartbeats come through whatever others send."""
_MOST_BUT_PRODUCE = 8 << 20
_FAREWELL_S = 1.0


class TurnedAwayError(Exception):
    """Why a connection is closed; `reason` is the word for it in the metrics."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    """A request that is not answered yet."""

    head: wire.Head
    task: asyncio.Task[tuple[wire.Head, Any] | None]
    share: Share
    turn: asyncio.Event

    def abandon(self) -> None:
        """Its client is gone. What a producer sent is in memory until it is written."""
        if self.head.api != PRODUCE:
            self.task.cancel()
        self.task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            # Looked at, so that nobody is told that nobody has.
            task.exception()
        self.share.release()


class Connection:
    """A client that is connected. `strict`: it has to log in, even if there are no users."""

    def __init__(
        self,
        broker: Broker,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        strict: bool,
        advertised: tuple[str, int] | None,
    ) -> None:
        self._broker, self._limits = broker, broker.settings.limits
        self._reader, self._writer = reader, writer
        self._strict = strict
        found: tuple[str, int] = advertised or writer.get_extra_info("sockname")[:2]
        self._host, self._port = found
        self.peer: str = writer.get_extra_info("peername")[0]
        encrypted = writer.get_extra_info("ssl_object") is not None
        self.login = Login(broker.access, encrypted=encrypted)
        self._answers: asyncio.Queue[_Request] = asyncio.Queue(_IN_FLIGHT)
        self._open: set[_Request] = set()
        self._begun = self._seen = time.monotonic()
        self._reading: float | None = None
        """Since when a request is being read."""
        self._unread: tuple[int, float] = (0, 0.0)
        """How much the client has not taken yet, and since when it is that much."""

    @property
    def admitted(self) -> bool:
        """Whether it may ask for anything."""
        required = self._strict or bool(self._broker.access.users)
        return self.login.user is not None or not required

    @property
    def stale(self) -> bool:
        """Whether it was let in as somebody that there is no more."""
        return self.login.user is not None and self.login.user not in self._broker.access.users

    def overdue(self, now: float) -> TurnedAwayError | None:
        """Why it should be closed, if it has waited for too long."""
        limits, left = self._limits, self._writer.transport.get_write_buffer_size()
        if left != self._unread[0]:
            self._unread = (left, now)
        stalled = now - self._unread[1] if left else 0.0
        if not self.admitted and now > self._begun + limits.login_s:
            return TurnedAwayError("login", "no login in time")
        if self._reading is not None and now > self._reading + limits.request_s:
            return TurnedAwayError("slow", "a request that does not come to its end")
        if stalled > limits.stalled_s and self._broker.room.waiting:
            return TurnedAwayError("slow", "answers that are not read, while others wait")
        if stalled > limits.idle_s or (not self._open and now > self._seen + limits.idle_s):
            return TurnedAwayError("idle", "nothing has been asked for a long time")
        return None

    async def serve(self) -> None:
        """Until the client goes, or sends what no client sends."""
        sender = asyncio.create_task(self._send())
        receiver = asyncio.create_task(self._receive())
        try:
            done, _ = await asyncio.wait({sender, receiver}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (sender, receiver):
                task.cancel()
            await asyncio.gather(sender, receiver, return_exceptions=True)
            for request in self._open:
                request.abandon()

    async def _receive(self) -> None:
        while (size := await self._size()) is not None:
            frame, share = await self._frame(size)
            head = wire.head(frame)
            if head.api != PRODUCE and size > _MOST_BUT_PRODUCE:
                share.release()
                raise MalformedError(f"a request {head.api} of {size} bytes")
            alone = head.api in LOGIN or not self.admitted
            turn = asyncio.Event()
            task = asyncio.create_task(self._answer(head, frame, share, turn))
            del frame
            request = _Request(head, task, share, turn)
            self._open.add(request)
            await self._answers.put(request)
            if alone:
                await asyncio.wait({task})
            if self.login.failed:
                # Nothing more is heard; the client may hang up first.
                while await self._reader.read(_SMALL):
                    pass
                return

    async def _size(self) -> int | None:
        """Of the next request; None if there is none."""
        try:
            (size,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise MalformedError("a frame that is cut off") from error
            return None
        limits = self._limits
        most = limits.request_bytes if self.admitted else limits.stranger_bytes
        if not 0 < size <= most:
            raise MalformedError(f"a frame of {size} bytes")
        return int(size)

    async def _frame(self, size: int) -> tuple[bytes, Share]:
        """A request, and the memory it takes: waited for before a large one is read."""
        room, share = self._broker.room, Share(self._broker.room)
        if size > _SMALL and self.admitted:
            share = await room.take(size)
        try:
            self._reading = self._seen = time.monotonic()
            frame = await self._reader.readexactly(size)
            self._reading = None
            if size <= _SMALL and wire.head(frame).api == PRODUCE:
                await share.become(size)
        except BaseException:
            share.release()
            raise
        return frame, share

    async def _send(self) -> None:
        while not self.login.failed:
            request = await self._answers.get()
            request.turn.set()
            found = await asyncio.shield(request.task)
            if found is not None:
                body = wire.response(*found)
                del found
                self._writer.writelines((_LENGTH.pack(len(body)), body))
                del body
                await self._writer.drain()
            request.share.release()
            self._open.discard(request)
            self._seen = time.monotonic()
        # Some clients do not read an answer that comes with the end of the connection.
        await asyncio.sleep(_FAREWELL_S)

    async def _answer(
        self, head: wire.Head, frame: bytes, share: Share, turn: asyncio.Event
    ) -> tuple[wire.Head, Any] | None:
        begun = time.perf_counter()
        if head.api == API_VERSIONS:
            found: tuple[wire.Head, Any] | None = self._versions(head)
        else:
            api = self._allowed(head)
            call = self._call(head, frame, share, turn)
            del frame
            if api.waits:
                share.release()
            values = await api.answer(call)
            if not api.waits:
                # What was sent is dealt with, whenever the answer can go.
                share.release()
            found = None if values is None else (head, values)
        self._broker.tally.answered(head.api, time.perf_counter() - begun)
        return found

    def _allowed(self, head: wire.Head) -> Api:
        """The kind of a request, if it is served at all, and to this client now."""
        api = APIS.get(head.api)
        if api is None or not api.least <= head.version <= api.most:
            raise MalformedError(f"request {head.api} in version {head.version} is not served")
        if (not self.admitted and api.key not in LOGIN) or self.stale:
            raise TurnedAwayError("login", f"{api.name} before the login")
        return api

    def _call(self, head: wire.Head, frame: bytes, share: Share, turn: asyncio.Event) -> Call:
        client, request = wire.request(frame, head)
        return Call(
            broker=self._broker,
            request=request,
            version=head.version,
            client=client,
            peer=self.peer,
            host=self._host,
            port=self._port,
            login=self.login,
            user=self._broker.access.users.get(self.login.user or ""),
            share=share,
            turn=turn,
        )

    @staticmethod
    def _versions(head: wire.Head) -> tuple[wire.Head, Any]:
        """A client that is newer than us is told so in a version that all understand."""
        if LEAST_VERSIONS <= head.version <= MOST_VERSIONS:
            return head, served()
        oldest = wire.Head(api=head.api, version=0, correlation=head.correlation)
        return oldest, served() | {"error_code": ErrorCode.unsupported_version}
