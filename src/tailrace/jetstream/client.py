"""Short asyncio sessions with NATS through nats-py: connect, ask or publish, disconnect.

For services (schema documents, requests, buckets) and for `/status`. Not for delivery: sinks and
snapshots use the blocking connection and `tailrace.jetstream.bulk`. Nothing here retries.

`connected` translates every error of nats-py, so callers handle Tailrace's errors only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from typing import TYPE_CHECKING, Any

import nats
import nats.errors
import nats.js.errors
from nats.aio.client import Client

from tailrace.errors import SinkError, SinkRefusedError, SinkUnreachableError
from tailrace.jetstream.failures import error_of
from tailrace.jetstream.login import Login

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nats.js import JetStreamContext
    from nats.js.api import RawStreamMsg

    from tailrace.jetstream.settings import NatsServer

TIMEOUT_S = 10.0
"""How long a request may take."""
ERRORS = (nats.errors.Error, OSError, TimeoutError)
"""What nats-py raises when a server or a connection fails."""
_STREAM_NAME = re.compile(r"[^\s.*>/\\\x00-\x20\x7f]{1,255}")


@contextlib.asynccontextmanager
async def connected(server: NatsServer) -> AsyncIterator[Client]:
    """A connection that is given up at the first failure, which raises a `SinkError`."""
    client = Client()
    try:
        await _connect(client, server)
    except (nats.errors.AuthorizationError, nats.errors.InvalidUserCredentialsError) as error:
        raise SinkRefusedError(f"NATS refuses the login: {error}") from error
    except ERRORS as error:
        raise SinkUnreachableError(f"NATS does not answer: {_reason(error)}") from error
    try:
        yield client
    except ERRORS as error:
        raise translate_error(error) from error
    finally:
        await close(client)


async def _connect(client: Client, server: NatsServer) -> None:
    options = _options(server)
    try:
        await asyncio.wait_for(client.connect(**options), 2 * TIMEOUT_S)
    except BaseException:
        # nats-py leaves the socket open when a login fails.
        await close(client)
        raise


async def close(client: Client) -> None:
    """Close a connection that may be broken; whatever was not sent is dropped.

    If its last flush fails, nats-py marks the client as closed and stops, with an open socket and
    waiting subscriptions: the second call has nothing left to flush. If a reconnection is under
    way, nats-py raises CancelledError although nobody cancelled the caller: hence the task.
    """
    if client._flush_queue is None:
        return  # It never began to connect: its credentials cannot be read.
    for _ in range(2):
        closing = asyncio.create_task(client.close())
        try:
            await asyncio.wait([closing])
        except asyncio.CancelledError:
            # A caller that is cancelled twice must not leave the socket open.
            await asyncio.wait([closing])
            raise
        error = None if closing.cancelled() else closing.exception()
        if error is None:
            return
        if not isinstance(error, ERRORS):
            raise error
        client._status = client.DISCONNECTED


def _options(server: NatsServer) -> dict[str, Any]:
    return {
        **Login.of(server).client_options(),
        "name": "tailrace",
        "allow_reconnect": False,
        # Even without reconnecting, nats-py tries every server this many times.
        "max_reconnect_attempts": 1,
        "reconnect_time_wait": 0.1,
        "connect_timeout": TIMEOUT_S,
        "error_cb": _ignore,
    }


async def _ignore(_error: Exception) -> None:
    """The call that failed raises the same error."""


def translate_error(error: Exception) -> SinkError:
    """The error of nats-py as one of Tailrace's."""
    if isinstance(error, nats.js.errors.APIError) and not isinstance(
        error, nats.js.errors.ServiceUnavailableError
    ):
        text = f"JetStream refused the request: {error.description}"
        return error_of(text, code=error.code or 0, err_code=error.err_code or 0)
    return SinkUnreachableError(f"the connection to NATS failed: {_reason(error)}")


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


async def stream_info(server: NatsServer, stream: str) -> dict[str, Any] | None:
    """JetStream's description of a stream; None if the stream does not exist."""
    if _STREAM_NAME.fullmatch(stream) is None:
        return None
    async with connected(server) as client:
        answer = await client.request(f"$JS.API.STREAM.INFO.{stream}", b"", timeout=TIMEOUT_S)
    info: dict[str, Any] = json.loads(answer.data)
    error = info.get("error")
    if error is None:
        return info
    if error.get("code") == 404:
        return None
    text = f"JetStream refused the request: {error.get('description', error)}"
    raise error_of(text, code=int(error.get("code", 0)), err_code=int(error.get("err_code", 0)))


async def messages(
    jetstream: JetStreamContext, stream: str, subject: str
) -> AsyncIterator[RawStreamMsg]:
    """The messages of one subject, oldest first, one request per message.

    For subjects with few messages. A nats-py watcher is one request in all, but it may take a slow
    first message for the end of the stream.
    """
    sequence = 1
    while True:
        try:
            message = await jetstream.get_msg(stream, seq=sequence, subject=subject, next=True)
        except nats.js.errors.NotFoundError:
            return
        yield message
        sequence = (message.seq or 0) + 1
