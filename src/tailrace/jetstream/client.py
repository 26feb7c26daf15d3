"""Short conversations with NATS, on the settings of a sink: ask, and hang up.

Not the delivery path; that is the sink's own. Nothing here retries or stays connected.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
from typing import TYPE_CHECKING, Any

import nats
import nats.errors
import nats.js.errors

from tailrace.errors import ConfigError, SinkRefusedError, SinkUnreachableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nats.aio.client import Client
    from nats.js import JetStreamContext
    from nats.js.api import KeyValueConfig
    from nats.js.kv import KeyValue

    from tailrace.jetstream.settings import NatsServer

_PATIENCE_S = 5.0
_STREAM_NAME = re.compile(r"[^\s.*>/\\\x00-\x20\x7f]{1,255}")


@contextlib.asynccontextmanager
async def connected(sink: NatsServer) -> AsyncIterator[Client]:
    """A connection that is given up at the first fault, with one of the sinks' errors."""
    try:
        client = await asyncio.wait_for(nats.connect(**_options(sink)), 2 * _PATIENCE_S)
    except (nats.errors.AuthorizationError, nats.errors.InvalidUserCredentialsError) as error:
        raise SinkRefusedError(f"NATS refuses the login: {error}") from error
    except (nats.errors.Error, OSError, TimeoutError) as error:
        raise SinkUnreachableError(f"NATS does not answer: {_reason(error)}") from error
    try:
        yield client
    except (nats.errors.Error, OSError, TimeoutError) as error:
        raise SinkUnreachableError(f"NATS failed: {_reason(error)}") from error
    finally:
        with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
            await client.close()


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _options(sink: NatsServer) -> dict[str, Any]:
    options: dict[str, Any] = {
        "servers": [url.strip() for url in sink.url.split(",") if url.strip()],
        "name": "tailrace",
        "allow_reconnect": False,
        # Without reconnecting, too, nats-py goes round the servers: this many times each.
        "max_reconnect_attempts": 1,
        "reconnect_time_wait": 0.1,
        "connect_timeout": _PATIENCE_S,
        "error_cb": _ignore,
        "user": sink.user or None,
        "password": sink.password.get_secret_value() or None,
        "token": sink.token.get_secret_value() or None,
        "user_credentials": str(sink.credentials) if sink.credentials else None,
        "nkeys_seed": str(sink.nkey) if sink.nkey else None,
    }
    if sink.tls_ca or sink.tls_certificate:
        options["tls"] = _tls(sink)
    return {key: value for key, value in options.items() if value is not None}


async def _ignore(_error: Exception) -> None:
    """What matters comes back from the call that failed."""


def _tls(sink: NatsServer) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=sink.tls_ca)
        if sink.tls_certificate:
            context.load_cert_chain(sink.tls_certificate, sink.tls_key)
    except OSError as error:
        raise ConfigError(f"cannot use the sink's certificates: {error}") from error
    return context


async def stream_info(sink: NatsServer, stream: str) -> dict[str, Any] | None:
    """JetStream's own answer about a stream; None when there is none of that name."""
    if _STREAM_NAME.fullmatch(stream) is None:
        return None
    async with connected(sink) as client:
        answer = await client.request(f"$JS.API.STREAM.INFO.{stream}", b"", timeout=_PATIENCE_S)
    info: dict[str, Any] = json.loads(answer.data)
    error = info.get("error")
    if error is None:
        return info
    if error.get("code") == 404:
        return None
    raise SinkRefusedError(f"JetStream says: {error.get('description', error)}")


async def bucket_of(jetstream: JetStreamContext, settings: KeyValueConfig) -> KeyValue:
    """A key-value bucket, made when it is missing and left as it is when not."""
    try:
        return await jetstream.key_value(settings.bucket)
    except nats.js.errors.NotFoundError:
        return await jetstream.create_key_value(settings)
