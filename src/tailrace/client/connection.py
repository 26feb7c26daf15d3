"""The connection to NATS, and its failures as errors of ours with a way out.

nats-py reconnects by itself and for ever once the first connection stands. Whoever waits for
messages registers to be told of it, because requests that were under way are lost.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import nats.errors
import nats.js.errors
import orjson
from nats.aio.client import Client as Nats

from tailrace.errors import SinkRefusedError, SinkUnreachableError

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from nats.js import JetStreamContext

LOG = logging.getLogger("tailrace.client")
PATIENCE_S = 5.0
_ADDRESS = "Check the address, and that the server runs."


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """A message as a stream has it."""

    sequence: int
    headers: dict[str, str]
    data: bytes


class Connection:
    """An open connection."""

    def __init__(self, client: Nats) -> None:
        self.client = client
        self.jetstream: JetStreamContext = client.jetstream(timeout=PATIENCE_S)
        self.interrupted: set[Callable[[], None]] = set()

    async def flush(self) -> None:
        """Send what is waiting to be sent, if there is somebody to send it to."""
        with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
            if self.client.is_connected:
                await self.client.flush(timeout=2)

    async def stream_info(self, stream: str) -> dict[str, Any]:
        """JetStream's own words about a stream, times included."""
        with failures(f"look at stream {stream}"):
            answer = await self.client.request(
                f"$JS.API.STREAM.INFO.{stream}", b"", timeout=PATIENCE_S
            )
        info: dict[str, Any] = orjson.loads(answer.data)
        if (error := info.get("error")) is None:
            return info
        if error.get("code") == 404:
            raise missing_stream(stream)
        raise SinkRefusedError(f"JetStream says: {error.get('description', error)}")

    async def message(self, stream: str, sequence: int, subject: str = ">") -> StoredMessage | None:
        """The first message of a subject from a sequence on; None if there is none."""
        asked = {"seq": sequence, "next_by_subj": subject}
        with failures(f"look at stream {stream}"):
            answer = await self.client.request(
                f"$JS.API.STREAM.MSG.GET.{stream}", orjson.dumps(asked), timeout=PATIENCE_S
            )
        found: dict[str, Any] = orjson.loads(answer.data)
        if (error := found.get("error")) is not None:
            if error.get("code") == 404:
                return None
            raise SinkRefusedError(f"JetStream says: {error.get('description', error)}")
        message = found["message"]
        return StoredMessage(
            sequence=message["seq"],
            headers=_headers(base64.b64decode(message.get("hdrs", ""))),
            data=base64.b64decode(message.get("data", "")),
        )


def _headers(block: bytes) -> dict[str, str]:
    """The fields of a header block.

    >>> _headers(b"NATS/1.0\\r\\nA: 1\\r\\n\\r\\n")
    {'A': '1'}
    """
    fields = (line.partition(":") for line in block.decode().split("\r\n")[1:])
    return {name: value.strip() for name, colon, value in fields if colon}


class MissingStreamError(SinkRefusedError):
    """There is no stream of that name."""


def missing_stream(stream: str) -> MissingStreamError:
    """There is no stream of that name."""
    return MissingStreamError(
        f"there is no stream {stream!r}",
        hint="A pipeline makes its stream with its first change: start it, or name the stream it "
        "has with connect(stream=..., snapshots=...).",
    )


@contextlib.contextmanager
def failures(doing: str) -> Iterator[None]:
    """Whatever nats-py says while we do something, as an error of ours."""
    try:
        yield
    except (nats.js.errors.ServiceUnavailableError, nats.errors.NoRespondersError) as error:
        raise SinkUnreachableError(
            f"cannot {doing}: JetStream does not answer",
            hint="Start nats-server with -js, and check the account's JetStream limits.",
        ) from error
    except nats.js.errors.APIError as error:
        raise SinkRefusedError(f"cannot {doing}: {error.description}") from error
    except (nats.errors.Error, OSError, TimeoutError) as error:
        raise SinkUnreachableError(f"cannot {doing}: {reason(error)}", hint=_ADDRESS) from error


def reason(error: BaseException) -> str:
    """In words; some errors have none."""
    return str(error) or type(error).__name__


@contextlib.asynccontextmanager
async def opened(
    url: str,
    *,
    user: str | None,
    password: str | None,
    token: str | None,
    credentials: str | Path | None,
    tls: ssl.SSLContext | None,
) -> AsyncIterator[Connection]:
    """A connection that is tried once, and kept up from then on."""
    found: list[Connection] = []

    def interrupted() -> None:
        for tell in [*found[0].interrupted] if found else ():
            tell()

    async def on_disconnect() -> None:
        interrupted()

    async def on_reconnect() -> None:
        LOG.info("connected to NATS again")
        # Once more: what was asked for in between went nowhere.
        interrupted()

    async def on_error(error: Exception) -> None:
        LOG.debug("NATS: %s", reason(error))

    options: dict[str, Any] = {
        "servers": [each.strip() for each in url.split(",") if each.strip()],
        "name": "tailrace client",
        # The first connection stands or fails at once, with the server's own reason.
        "allow_reconnect": False,
        "max_reconnect_attempts": 1,
        "reconnect_time_wait": 0.2,
        "connect_timeout": PATIENCE_S,
        "disconnected_cb": on_disconnect,
        "reconnected_cb": on_reconnect,
        "error_cb": on_error,
        "user": user,
        "password": password,
        "token": token,
        "user_credentials": str(credentials) if credentials else None,
        "tls": tls,
    }
    options = {name: value for name, value in options.items() if value is not None}
    client = Nats()
    try:
        await _connect(client, options)
    except (nats.errors.Error, OSError, TimeoutError) as error:
        if "authorization" in str(error).lower() or "credentials" in str(error).lower():
            raise SinkRefusedError(
                f"NATS refuses the login: {error}",
                hint="Check user, password, token or credentials.",
            ) from error
        raise SinkUnreachableError(
            f"NATS does not answer: {reason(error)}", hint=_ADDRESS
        ) from error
    client.options["allow_reconnect"] = True
    client.options["max_reconnect_attempts"] = -1
    found.append(Connection(client))
    try:
        yield found[0]
    finally:
        await found[0].flush()
        with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
            await client.close()


async def _connect(client: Nats, options: dict[str, Any]) -> None:
    try:
        await asyncio.wait_for(client.connect(**options), 2 * PATIENCE_S)
    except BaseException:
        # A login that is refused leaves the line open.
        await client.close()
        raise
