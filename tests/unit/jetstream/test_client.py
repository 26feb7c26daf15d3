"""Errors of nats-py as Tailrace's errors."""

from __future__ import annotations

import nats.errors
import nats.js.errors
import pytest

from tailrace.errors import SinkRefusedError, SinkUnreachableError
from tailrace.jetstream.client import translate_error


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
