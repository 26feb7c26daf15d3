"""One client connection: requests in, responses out, in order.

Each request runs in its own task and starts in order of arrival; responses are sent in the same
order. So a client may send the next batch before the last one is durable. Before the login a
connection has one request at a time, a small one, of few kinds.

A connection records when it began to wait. The server checks all connections once per second, which
is cheaper than a timer per request.
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
    LOGIN,
    MAX_API_VERSIONS,
    MIN_API_VERSIONS,
    PRODUCE,
    Api,
    Call,
    api_versions,
)
from tailrace.broker.auth.login import Login
from tailrace.broker.limits import Reservation
from tailrace.errors import MalformedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.broker.broker import Broker

_LENGTH = struct.Struct(">i")
_MAX_IN_FLIGHT = 32
_SMALL = 4 << 10
"""Requests up to this size do not wait for memory, so heartbeats are never delayed."""
_MAX_NON_PRODUCE = 8 << 20
_CLOSE_DELAY_S = 1.0


class RejectedError(Exception):
    """The broker closes a connection. `reason` is the label of the metric."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    """A request without a response yet."""

    head: wire.Head
    task: asyncio.Task[tuple[wire.Head, Any] | None]
    memory: Reservation
    earlier_answered: asyncio.Event

    def abandon(self) -> None:
        """The client is gone. Batches hold their memory until they are written or time out."""
        if self.head.api != PRODUCE:
            self.task.cancel()
        self.task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            # Retrieve the exception: asyncio logs those that were never retrieved.
            task.exception()
        self.memory.release()


class Connection:
    """A connected client. `login_required`: the client must log in even if there are no users."""

    def __init__(
        self,
        broker: Broker,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        login_required: bool,
        advertised: tuple[str, int] | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._broker, self._limits, self._clock = broker, broker.limits, clock
        self._reader, self._writer = reader, writer
        self._login_required = login_required
        address: tuple[str, int] = advertised or writer.get_extra_info("sockname")[:2]
        self._host, self._port = address
        self.peer: str = writer.get_extra_info("peername")[0]
        encrypted = writer.get_extra_info("ssl_object") is not None
        self.login = Login(broker.access, encrypted=encrypted)
        self._responses: asyncio.Queue[_Request] = asyncio.Queue(_MAX_IN_FLIGHT)
        self._in_progress: set[_Request] = set()
        self._producing = asyncio.Lock()
        self._opened_at = self._active_at = clock()
        self._reading_since: float | None = None
        """When the request that is being read began."""
        self._unsent: tuple[int, float] = (0, 0.0)
        """Bytes in the send buffer, and since when their number is unchanged."""

    @property
    def admitted(self) -> bool:
        """Whether the client may send any request."""
        required = self._login_required or bool(self._broker.access.users)
        return self.login.user is not None or not required

    @property
    def stale(self) -> bool:
        """Whether the user was removed after the login."""
        return self.login.user is not None and self.login.user not in self._broker.access.users

    def overdue(self, now: float) -> RejectedError | None:
        """Why the connection must be closed, if it has waited too long."""
        limits, unsent = self._limits, self._writer.transport.get_write_buffer_size()
        if unsent != self._unsent[0]:
            self._unsent = (unsent, now)
        stalled_s = now - self._unsent[1] if unsent else 0.0
        if not self.admitted and now > self._opened_at + limits.login_s:
            return RejectedError("login", f"no login within {limits.login_s:g} s")
        if self._reading_since is not None and now > self._reading_since + limits.request_s:
            return RejectedError("slow", f"request incomplete after {limits.request_s:g} s")
        if stalled_s > limits.stalled_s and self._broker.memory_waiting:
            return RejectedError("slow", "client does not read responses while others need memory")
        idle = not self._in_progress and now > self._active_at + limits.idle_s
        if idle or stalled_s > limits.idle_s:
            return RejectedError("idle", f"idle for {limits.idle_s:g} s")
        return None

    async def serve(self) -> None:
        """Serve until the client disconnects or sends an invalid request."""
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
            for request in self._in_progress:
                request.abandon()

    async def _receive(self) -> None:
        while (size := await self._read_size()) is not None:
            frame, memory = await self._read_frame(size)
            head = wire.head(frame)
            if head.api != PRODUCE and size > _MAX_NON_PRODUCE:
                memory.release()
                raise MalformedError(f"request of API {head.api} has {size} bytes")
            alone = head.api in LOGIN or not self.admitted
            earlier_answered = asyncio.Event()
            task = asyncio.create_task(self._answer(head, frame, memory, earlier_answered))
            del frame
            request = _Request(head, task, memory, earlier_answered)
            self._in_progress.add(request)
            await self._responses.put(request)
            if alone:
                await asyncio.wait({task})
            if self.login.failed:
                # Discard further input until the client disconnects or the sender ends.
                while await self._reader.read(_SMALL):
                    pass
                return

    async def _read_size(self) -> int | None:
        """The size of the next request; None if the client has disconnected."""
        try:
            (size,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise MalformedError("connection closed within a request") from error
            return None
        limits = self._limits
        max_size = limits.request_bytes if self.admitted else limits.unauthenticated_bytes
        if not 0 < size <= max_size:
            raise MalformedError(f"request of {size} bytes, must be 1 to {max_size}")
        return int(size)

    async def _read_frame(self, size: int) -> tuple[bytes, Reservation]:
        """A request and its memory, which is reserved before a large request is read."""
        memory = Reservation(self._broker.memory)
        if size > _SMALL and self.admitted:
            await memory.replace(size)
        try:
            self._reading_since = self._active_at = self._clock()
            frame = await self._reader.readexactly(size)
            self._reading_since = None
            if size <= _SMALL and wire.head(frame).api == PRODUCE:
                await memory.replace(size)
        except BaseException:
            memory.release()
            raise
        return frame, memory

    async def _send(self) -> None:
        while not self.login.failed:
            request = await self._responses.get()
            request.earlier_answered.set()
            answer = await asyncio.shield(request.task)
            if answer is not None:
                body = wire.response(*answer)
                del answer
                if len(body) > max(_SMALL, request.memory.size):
                    request.memory.resize(len(body))
                self._writer.writelines((_LENGTH.pack(len(body)), body))
                del body
                await self._writer.drain()
            request.memory.release()
            self._in_progress.discard(request)
            self._active_at = self._clock()
        # Some clients ignore a response that arrives together with the end of the connection.
        await asyncio.sleep(_CLOSE_DELAY_S)

    async def _answer(
        self, head: wire.Head, frame: bytes, memory: Reservation, earlier_answered: asyncio.Event
    ) -> tuple[wire.Head, Any] | None:
        started = time.perf_counter()
        if head.api == API_VERSIONS:
            answer: tuple[wire.Head, Any] | None = self._api_versions(head)
        else:
            api = self._api(head)
            call = self._call(head, frame, memory, earlier_answered)
            del frame
            if api.may_wait:
                memory.move(self._broker.response_memory)
            values = await api.answer(call)
            if not api.may_wait:
                # The request is done; its memory must not wait for earlier responses.
                memory.release()
            answer = None if values is None else (head, values)
        self._broker.tally.answered(head.api, time.perf_counter() - started)
        return answer

    def _api(self, head: wire.Head) -> Api:
        """The kind of a request. An error if it is not served, or not before the login."""
        api = APIS.get(head.api)
        if api is None or not api.min_version <= head.version <= api.max_version:
            raise MalformedError(f"API {head.api} version {head.version} is not supported")
        if (not self.admitted and api.key not in LOGIN) or self.stale:
            raise RejectedError("login", f"{api.name} request without a login")
        return api

    def _call(
        self, head: wire.Head, frame: bytes, memory: Reservation, earlier_answered: asyncio.Event
    ) -> Call[Any]:
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
            memory=memory,
            earlier_answered=earlier_answered,
            producing=self._producing,
        )

    @staticmethod
    def _api_versions(head: wire.Head) -> tuple[wire.Head, Any]:
        """A newer client gets an error in version 0, which every client understands (KIP-511)."""
        if MIN_API_VERSIONS <= head.version <= MAX_API_VERSIONS:
            return head, api_versions()
        oldest = wire.Head(api=head.api, version=0, correlation=head.correlation)
        return oldest, api_versions() | {"error_code": ErrorCode.unsupported_version}
