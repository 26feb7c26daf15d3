"""Errors of Redis: which are retried, which need a person."""

from __future__ import annotations

import ssl

import pytest
from redis import exceptions

from tailrace.errors import SinkError, SinkFullError, SinkRefusedError, SinkUnreachableError
from tailrace.sinks.redis.failures import translate_error


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (exceptions.ConnectionError("Connection refused"), SinkUnreachableError),
        (exceptions.TimeoutError("Timeout reading"), SinkUnreachableError),
        (exceptions.BusyLoadingError("Redis is loading"), SinkUnreachableError),
        (exceptions.ReadOnlyError("You can't write"), SinkUnreachableError),
        (exceptions.MaxConnectionsError("max number of clients"), SinkUnreachableError),
        (exceptions.ResponseError("MISCONF Redis is configured"), SinkUnreachableError),
        (exceptions.ResponseError("NOREPLICAS Not enough good replicas"), SinkUnreachableError),
        (exceptions.ResponseError("BUSY Redis is busy running a script"), SinkUnreachableError),
        (exceptions.ClusterDownError("CLUSTERDOWN Hash slot not served"), SinkUnreachableError),
        (exceptions.TryAgainError("TRYAGAIN Multiple keys"), SinkUnreachableError),
        (exceptions.RedisClusterException("cannot be connected"), SinkUnreachableError),
        (OSError("broken pipe"), SinkUnreachableError),
        (exceptions.OutOfMemoryError("command not allowed"), SinkFullError),
        (exceptions.ResponseError("Error running script: -OOM command not"), SinkFullError),
        (exceptions.AuthenticationError("invalid username-password pair"), SinkRefusedError),
        (exceptions.AuthenticationWrongNumberOfArgsError("wrong number"), SinkRefusedError),
        (exceptions.NoPermissionError("no permissions"), SinkRefusedError),
        (exceptions.ResponseError("NOAUTH Authentication required."), SinkRefusedError),
        (exceptions.ResponseError("WRONGTYPE Operation against a key"), SinkRefusedError),
        (exceptions.ResponseError("unknown command 'WAITAOF'"), SinkRefusedError),
        (exceptions.ResponseError("The XADD command was refused"), SinkRefusedError),
        (exceptions.RedisClusterException("Cluster mode is not enabled"), SinkRefusedError),
        (
            caused(exceptions.RedisClusterException("x"), exceptions.AuthenticationError("y")),
            SinkRefusedError,
        ),
        (
            caused(exceptions.ConnectionError("x"), ssl.SSLCertVerificationError("unknown CA")),
            SinkRefusedError,
        ),
        (
            caused(exceptions.ConnectionError("x"), ssl.SSLError("TLSV13_ALERT_CERTIFICATE")),
            SinkRefusedError,
        ),
    ],
)
def test_errors(error: Exception, kind: type[SinkError]) -> None:
    made = translate_error(error, "Redis at localhost:6379", cluster=True)
    assert type(made) is kind
    assert str(made).startswith("Redis at localhost:6379: ")
    assert made.hint


def test_a_cluster_without_the_setting() -> None:
    moved = exceptions.MovedError("1 127.0.0.1:7000")
    assert isinstance(translate_error(moved, "x", cluster=True), SinkUnreachableError)
    refused = translate_error(moved, "x")
    assert isinstance(refused, SinkRefusedError)
    assert "cluster: true" in refused.hint
