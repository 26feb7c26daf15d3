"""Errors of nats-py as Tailrace's errors; closing broken connections."""

from __future__ import annotations

import asyncio
from typing import cast

import nats.errors
import nats.js.errors
import pytest
from nats.aio.client import Client

from tailrace.errors import SinkRefusedError, SinkUnreachableError
from tailrace.jetstream.client import close, translate_error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (nats.js.errors.BadRequestError(code=400, description="no"), SinkRefusedError),
        (nats.js.errors.NotFoundError(code=404, description="no"), SinkRefusedError),
        (nats.js.errors.ServerError(code=500, err_code=10009), SinkUnreachableError),
        (nats.js.errors.ServiceUnavailableError(code=503), SinkUnreachableError),
        (nats.js.errors.NoStreamResponseError(), SinkUnreachableError),
        (nats.errors.NoRespondersError(), SinkUnreachableError),
        (nats.errors.ConnectionClosedError(), SinkUnreachableError),
        (TimeoutError(), SinkUnreachableError),
        (ConnectionResetError("reset"), SinkUnreachableError),
    ],
)
def test_each_error_has_its_kind(error: Exception, kind: type[Exception]) -> None:
    translated = translate_error(error)
    assert type(translated) is kind
    assert translated.hint
    assert str(translated)[-1] not in ": "


class Breaking:
    """Fails its first `close`, as nats-py does."""

    DISCONNECTED = 0

    def __init__(self, error: BaseException) -> None:
        self._errors = [error]
        self._status = 2
        self._flush_queue = asyncio.Queue[object]()
        self.closed = False

    async def close(self) -> None:
        if self._errors:
            raise self._errors.pop()
        assert self._status == self.DISCONNECTED
        self.closed = True


def test_a_client_that_never_began_to_connect_is_closed() -> None:
    asyncio.run(close(Client()))


def test_close_finishes_what_a_failed_flush_left() -> None:
    client = Breaking(ConnectionResetError())
    asyncio.run(close(cast("Client", client)))
    assert client.closed


def test_a_reconnection_that_is_cancelled_does_not_cancel_the_caller() -> None:
    asyncio.run(close(cast("Client", Breaking(asyncio.CancelledError()))))


def test_a_caller_that_is_cancelled_while_it_closes_leaves_nothing_open() -> None:
    class Slow(Breaking):
        async def close(self) -> None:
            await asyncio.sleep(0.05)
            self.closed = True

    async def run() -> bool:
        client = Slow(ZeroDivisionError())
        closing = asyncio.create_task(close(cast("Client", client)))
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        return client.closed

    assert asyncio.run(run())


def test_bugs_are_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        asyncio.run(close(cast("Client", Breaking(ZeroDivisionError()))))
