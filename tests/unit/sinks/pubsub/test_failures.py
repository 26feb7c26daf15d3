"""What statuses of gRPC mean: for messages outcomes, for the rest errors with a fix."""

from __future__ import annotations

import pytest
from google.api_core.exceptions import GoogleAPICallError, from_grpc_status
from google.auth import exceptions
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from grpc import StatusCode

from tailrace.errors import SinkError, SinkRefusedError, SinkUnreachableError
from tailrace.sinks.outcome import Verdict
from tailrace.sinks.pubsub.failures import outcome_of, translate

TOPIC = "projects/shop-1/topics/orders"
HANDSHAKE = "Ssl handshake failed: CERTIFICATE_VERIFY_FAILED: self signed certificate"
NO_TOKEN = "Getting metadata from plugin failed with error: no route to host"


def answered(
    status: StatusCode, message: str = "the first line\nthe second", *details: object
) -> GoogleAPICallError:
    error: GoogleAPICallError = from_grpc_status(status, message, details=details)
    return error


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (StatusCode.RESOURCE_EXHAUSTED, Verdict.THROTTLED),
        (StatusCode.UNAVAILABLE, Verdict.RETRY),
        (StatusCode.DEADLINE_EXCEEDED, Verdict.RETRY),
        (StatusCode.ABORTED, Verdict.RETRY),
        (StatusCode.INTERNAL, Verdict.RETRY),
        (StatusCode.CANCELLED, Verdict.RETRY),
        (StatusCode.UNKNOWN, Verdict.RETRY),
        (StatusCode.INVALID_ARGUMENT, Verdict.REFUSED),
        (StatusCode.OUT_OF_RANGE, Verdict.REFUSED),
    ],
)
def test_statuses_that_are_outcomes(status: StatusCode, verdict: Verdict) -> None:
    found = outcome_of(answered(status), topic=TOPIC)
    assert (found.verdict, found.code, found.response) == (verdict, status.name, "the first line")
    assert found.retry_after_s is None
    transient = translate(answered(status)).transient
    assert transient is (verdict is not Verdict.REFUSED)


def test_a_pause_that_the_service_asks_for() -> None:
    asked = RetryInfo(retry_delay=Duration(seconds=7, nanos=500_000_000))
    error = answered(StatusCode.RESOURCE_EXHAUSTED, "slow", ErrorInfo(reason="QUOTA"), asked)
    assert outcome_of(error, topic=TOPIC).retry_after_s == 7.5


@pytest.mark.parametrize(
    ("error", "kind", "hint"),
    [
        (
            answered(StatusCode.NOT_FOUND),
            SinkRefusedError,
            "Run: gcloud pubsub topics create orders --project=shop-1",
        ),
        (answered(StatusCode.PERMISSION_DENIED), SinkRefusedError, "roles/pubsub.publisher"),
        (answered(StatusCode.UNAUTHENTICATED), SinkRefusedError, "credentials_file"),
        (answered(StatusCode.FAILED_PRECONDITION), SinkRefusedError, "encryption key"),
        (answered(StatusCode.UNIMPLEMENTED), SinkRefusedError, "endpoint_url"),
        (answered(StatusCode.UNAVAILABLE, HANDSHAKE), SinkRefusedError, "tls_ca"),
        (answered(StatusCode.UNAVAILABLE, NO_TOKEN), SinkUnreachableError, "credentials_file"),
    ],
)
def test_errors_that_concern_all_messages(
    error: GoogleAPICallError, kind: type[SinkError], hint: str
) -> None:
    with pytest.raises(kind) as caught:
        outcome_of(error, topic=TOPIC)
    assert hint in caught.value.hint
    assert f"topic {TOPIC}" in str(caught.value)
    assert "the second" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (exceptions.DefaultCredentialsError("none"), SinkRefusedError),
        (exceptions.MalformedError("no key"), SinkRefusedError),
        (exceptions.RefreshError("invalid_grant"), SinkRefusedError),
        (exceptions.RefreshError("503", retryable=True), SinkUnreachableError),
        (exceptions.TransportError("no route to host"), SinkUnreachableError),
        (ValueError("Could not deserialize key data"), SinkRefusedError),
    ],
)
def test_errors_of_the_login(error: Exception, kind: type[SinkError]) -> None:
    found = translate(error)
    assert type(found) is kind
    assert "credentials_file" in found.hint


def test_a_missing_project_has_no_command() -> None:
    assert "project" in translate(answered(StatusCode.NOT_FOUND)).hint
