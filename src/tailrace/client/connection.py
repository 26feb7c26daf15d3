"""The connection to NATS; errors of nats-py as errors of Tailrace, with a hint.

nats-py reconnects by itself, without limit, once the first connection is established. A reader
that waits for messages registers in `Connection.on_interrupt`, because JetStream does not answer
requests that were pending when the connection broke.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import nats.errors
import nats.js.errors
import orjson
from nats.aio.client import Client as Nats

from tailrace.errors import SinkRefusedError, SinkUnreachableError
from tailrace.jetstream.client import ERRORS, close
from tailrace.jetstream.login import client_options

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from nats.aio.client import Srv
    from nats.js import JetStreamContext

LOG = logging.getLogger("tailrace.client")
REQUEST_TIMEOUT_S = 5.0
_ADDRESS = "Check the address, and that the server is running."


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """A message of a stream, read by its sequence."""

    sequence: int
    headers: dict[str, str]
    data: bytes
    time: datetime
    """When the stream stored it, by the clock of the server."""


class _Nats(Nats):
    """nats-py's client, which otherwise leaves a socket open for each login that breaks off."""

    async def _connect_to_server(self, s: Srv) -> None:
        if self._transport:
            self._transport.close()  # type: ignore[no-untyped-call]
        await super()._connect_to_server(s)


class Connection:
    """An open connection."""

    def __init__(self, client: Nats) -> None:
        self.client = client
        self.jetstream: JetStreamContext = client.jetstream(timeout=REQUEST_TIMEOUT_S)
        self.on_interrupt: set[Callable[[], None]] = set()
        """Called when the connection breaks, and again when it is re-established."""

    def interrupted(self) -> None:
        """Call the listeners."""
        for listener in [*self.on_interrupt]:
            listener()

    async def flush(self) -> None:
        """Send buffered messages, if connected. Errors are ignored."""
        with contextlib.suppress(*ERRORS):
            if self.client.is_connected:
                await self.client.flush(timeout=2)

    async def stream_info(self, stream: str) -> dict[str, Any]:
        """JetStream's description of a stream. nats-py's own call drops the timestamps."""
        info = await self._api(f"STREAM.INFO.{stream}", b"", stream)
        if info is None:
            raise missing_stream(stream)
        return info

    async def message(self, stream: str, sequence: int, subject: str = ">") -> StoredMessage | None:
        """The first message of a subject at or after a sequence; None if there is no such one."""
        body = {"seq": sequence, "next_by_subj": subject}
        answer = await self._api(f"STREAM.MSG.GET.{stream}", orjson.dumps(body), stream)
        if answer is None:
            return None
        message = answer["message"]
        return StoredMessage(
            sequence=message["seq"],
            headers=_headers(base64.b64decode(message.get("hdrs", ""))),
            data=base64.b64decode(message.get("data", "")),
            time=datetime.fromisoformat(message["time"]),
        )

    async def _api(self, subject: str, body: bytes, stream: str) -> dict[str, Any] | None:
        """The answer of JetStream's API; None for 404."""
        with translate_errors(f"read stream {stream}"):
            reply = await self.client.request(f"$JS.API.{subject}", body, timeout=REQUEST_TIMEOUT_S)
        answer: dict[str, Any] = orjson.loads(reply.data)
        error = answer.get("error")
        if error is None:
            return answer
        if error.get("code") == 404:
            return None
        raise SinkRefusedError(
            f"JetStream refuses to read stream {stream}: {error.get('description', error)}"
        )


def _headers(block: bytes) -> dict[str, str]:
    """The fields of a header block.

    >>> _headers(b"NATS/1.0\\r\\nA: 1\\r\\n\\r\\n")
    {'A': '1'}
    """
    fields = (line.partition(":") for line in block.decode().split("\r\n")[1:])
    return {name: value.strip() for name, colon, value in fields if colon}


class MissingStreamError(SinkRefusedError):
    """The stream does not exist."""


def missing_stream(stream: str) -> MissingStreamError:
    """The error for a stream that does not exist."""
    return MissingStreamError(
        f"there is no stream {stream!r}",
        hint="A pipeline creates its stream with its first change: start it. If the pipeline uses "
        "another stream, name it with connect(stream=..., snapshots=...).",
    )


@contextlib.contextmanager
def translate_errors(action: str) -> Iterator[None]:
    """Raise errors of nats-py as errors of Tailrace. `action` completes "cannot ..."."""
    try:
        yield
    except (nats.js.errors.ServiceUnavailableError, nats.errors.NoRespondersError) as error:
        raise SinkUnreachableError(
            f"cannot {action}: JetStream does not answer",
            hint="Start nats-server with -js, and check the account's JetStream limits.",
        ) from error
    except nats.js.errors.APIError as error:
        raise SinkRefusedError(f"cannot {action}: {error.description}") from error
    except ERRORS as error:
        raise SinkUnreachableError(f"cannot {action}: {reason(error)}", hint=_ADDRESS) from error


def reason(error: BaseException) -> str:
    """The message of an error; its type if it has no message."""
    return str(error) or type(error).__name__


@contextlib.asynccontextmanager
async def open_connection(
    url: str,
    *,
    user: str | None,
    password: str | None,
    token: str | None,
    credentials: str | Path | None,
    tls: ssl.SSLContext | None,
) -> AsyncIterator[Connection]:
    """A connection until the block ends.

    The first attempt is the only one: a wrong address or login fails at once, with the server's
    reason. After it nats-py reconnects without limit.
    """
    client = _Nats()
    connection = Connection(client)
    login = client_options(
        url, user=user, password=password, token=token, credentials=credentials, tls=tls
    )
    await _connect(client, _options(connection) | login)
    # From here on: nats-py reads both options when a connection breaks, not when it is created.
    client.options["allow_reconnect"] = True
    client.options["max_reconnect_attempts"] = -1
    try:
        yield connection
    finally:
        try:
            await connection.flush()
        finally:
            await close(client)


def _options(connection: Connection) -> dict[str, Any]:
    """What nats-py needs for one attempt, and the callbacks of the connection."""

    async def on_disconnect() -> None:
        connection.interrupted()

    async def on_reconnect() -> None:
        LOG.info("client.reconnected")
        # A second time: requests that were sent while the connection was down are lost, too.
        connection.interrupted()

    async def on_error(error: Exception) -> None:
        LOG.debug("client.nats_error reason=%s", reason(error))

    return {
        "name": "tailrace client",
        "allow_reconnect": False,
        "max_reconnect_attempts": 1,
        "reconnect_time_wait": 0.2,
        "connect_timeout": REQUEST_TIMEOUT_S,
        "disconnected_cb": on_disconnect,
        "reconnected_cb": on_reconnect,
        "error_cb": on_error,
    }


async def _connect(client: Nats, options: dict[str, Any]) -> None:
    try:
        # A limit for the whole attempt: TCP, TLS and login.
        await asyncio.wait_for(client.connect(**options), 2 * REQUEST_TIMEOUT_S)
    except BaseException as error:
        # nats-py leaves the socket open when the server refuses the login.
        await close(client)
        if isinstance(error, ERRORS):
            raise _connect_error(error) from error
        raise


def _connect_error(error: BaseException) -> SinkRefusedError | SinkUnreachableError:
    """nats-py has no class for a refused login: its text decides."""
    text = str(error).lower()
    if "authorization" in text or "credentials" in text:
        return SinkRefusedError(
            f"NATS refuses the login: {error}",
            hint="Check user, password, token or credentials.",
        )
    return SinkUnreachableError(f"NATS does not answer: {reason(error)}", hint=_ADDRESS)
