"""The listener: frames in, frames out, in order.

A connection's requests are begun in the order they come, each in a task of its own, and answered in
that order: a client may send the next batch before the last one is durable. A frame that is too
large, cut off or no request at all closes its connection, and nothing else.
"""

from __future__ import annotations

import asyncio
import struct
import traceback
from typing import TYPE_CHECKING, Any

import structlog
from kio.schema.errors import ErrorCode

from tailrace.broker import wire
from tailrace.broker.api import API_VERSIONS, APIS, Call, served
from tailrace.errors import MalformedError, TailraceError

if TYPE_CHECKING:
    from tailrace.broker.broker import Broker

_LENGTH = struct.Struct(">i")
_IN_FLIGHT = 32


class Server:
    """Listens for clients of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._events = structlog.get_logger()

    async def start(self, host: str, port: int) -> int:
        """Listen; the port it is."""
        self._server = await asyncio.start_server(self._accept, host, port, limit=1 << 18)
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def stop(self) -> None:
        """Close the port and all connections."""
        if self._server is not None:
            self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await Connection(self._broker, reader, writer).serve()
        except MalformedError as error:
            peer = writer.get_extra_info("peername")
            self._events.warning("broker.malformed", peer=str(peer), reason=str(error)[:200])
        except TailraceError as error:
            self._events.warning("broker.unanswered", reason=str(error)[:200])
        except (OSError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            # The server stops: there is nobody to tell.
            pass
        except Exception:
            self._events.error("broker.failed", trace=traceback.format_exc())
        finally:
            self._connections.discard(task)
            writer.transport.abort()


class Connection:
    """One client."""

    def __init__(
        self, broker: Broker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._broker = broker
        self._reader, self._writer = reader, writer
        self._host, self._port = writer.get_extra_info("sockname")[:2]
        self._peer: str = writer.get_extra_info("peername")[0]
        self._answers: asyncio.Queue[asyncio.Task[Any]] = asyncio.Queue(_IN_FLIGHT)

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
            while not self._answers.empty():
                self._answers.get_nowait().cancel()

    async def _receive(self) -> None:
        while True:
            try:
                (size,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            except asyncio.IncompleteReadError as error:
                if error.partial:
                    raise MalformedError("a frame that is cut off") from error
                return
            if not 0 < size <= self._broker.settings.most_request_bytes:
                raise MalformedError(f"a frame of {size} bytes")
            frame = await self._reader.readexactly(size)
            await self._answers.put(asyncio.create_task(self._answer(frame)))

    async def _send(self) -> None:
        while True:
            found = await (await self._answers.get())
            if found is not None:
                body = wire.response(*found)
                self._writer.writelines((_LENGTH.pack(len(body)), body))
                await self._writer.drain()

    async def _answer(self, frame: bytes) -> tuple[wire.Head, Any] | None:
        head = wire.head(frame)
        if head.api == API_VERSIONS:
            return self._versions(head)
        api = APIS.get(head.api)
        if api is None or not api.least <= head.version <= api.most:
            raise MalformedError(f"request {head.api} in version {head.version} is not served")
        client, request = wire.request(frame, head)
        call = Call(
            broker=self._broker,
            request=request,
            version=head.version,
            client=client,
            peer=self._peer,
            host=self._host,
            port=self._port,
        )
        values = await api.answer(call)
        return None if values is None else (head, values)

    @staticmethod
    def _versions(head: wire.Head) -> tuple[wire.Head, Any]:
        """A client that is newer than us is told so in a version that all understand."""
        if 0 <= head.version <= 4:
            return head, served()
        oldest = wire.Head(api=head.api, version=0, correlation=head.correlation)
        return oldest, served() | {"error_code": ErrorCode.unsupported_version}
