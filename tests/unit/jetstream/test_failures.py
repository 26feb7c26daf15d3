"""Errors of JetStream: an election passes by itself, a wrong setting does not."""

from __future__ import annotations

import pytest

from tailrace.errors import SinkError, SinkFullError, SinkRefusedError, SinkUnreachableError
from tailrace.jetstream.failures import error_of


@pytest.mark.parametrize(
    ("code", "err_code", "kind"),
    [
        (400, 10005, SinkUnreachableError),  # no suitable peers for placement
        (503, 10008, SinkUnreachableError),  # JetStream system temporarily unavailable
        (500, 10009, SinkUnreachableError),  # JetStream cluster can not handle request
        (404, 10014, SinkUnreachableError),  # consumer not found
        (500, 10118, SinkUnreachableError),  # stream is offline
        (409, 10158, SinkUnreachableError),  # duplicate message id is in process
        (429, 10167, SinkUnreachableError),  # too many requests
        (400, 10176, SinkUnreachableError),  # atomic publish batch is incomplete
        (400, 10002, SinkFullError),  # resource limits exceeded for account
        (503, 10023, SinkFullError),  # insufficient resources
        (500, 10052, SinkRefusedError),  # invalid configuration
        (500, 10074, SinkRefusedError),  # replicas > 1 not supported in non-clustered mode
        (503, 10076, SinkRefusedError),  # JetStream not enabled
        (400, 10065, SinkRefusedError),  # subjects overlap with an existing stream
    ],
)
def test_kinds(code: int, err_code: int, kind: type[SinkError]) -> None:
    error = error_of("NATS cannot do this", code=code, err_code=err_code)
    assert type(error) is kind
    assert error.hint


def test_too_few_servers_may_be_a_setting() -> None:
    error = error_of("no suitable peers for placement", code=400, err_code=10005)
    assert "stream.replicas" in error.hint
