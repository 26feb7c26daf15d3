"""What errors and answers of AWS mean: for messages outcomes, for the rest errors with a fix."""

from __future__ import annotations

from typing import Any

import pytest
from botocore import exceptions

from tailrace.errors import SinkError, SinkRefusedError, SinkUnreachableError
from tailrace.sinks.aws.answers import NO_RESULT, outcomes_by_id, outcomes_by_row
from tailrace.sinks.outcome import Outcome, Verdict
from tailrace.sinks.sqs.sink import SQS

SECRET = "planted-session-token"


def answered(
    code: str, status: int = 400, operation: str = "Send", *, retry_after: str = ""
) -> Exception:
    message = f"the first line\nx-amz-security-token:{SECRET}"
    response: dict[str, Any] = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": {"retry-after": retry_after}},
    }
    error: Exception = exceptions.ClientError(response, operation)
    return error


def outcome(error: Exception) -> Outcome:
    return SQS.outcome_of_request(error, destination="orders")


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (answered("RequestThrottled", 403), Verdict.THROTTLED),
        (answered("ProvisionedThroughputExceededException"), Verdict.THROTTLED),
        (answered("KmsThrottled"), Verdict.THROTTLED),
        (answered("429", 429), Verdict.THROTTLED),
        (answered("InternalFailure", 500), Verdict.RETRY),
        (answered("ServiceUnavailable", 503), Verdict.RETRY),
        (answered("502", 502), Verdict.RETRY),
        (answered("RequestExpired"), Verdict.RETRY),
        (answered("AWS.SimpleQueueService.BatchRequestTooLong"), Verdict.REFUSED),
        (answered("InvalidMessageContents"), Verdict.REFUSED),
        (answered("413", 413), Verdict.REFUSED),
        (exceptions.ReadTimeoutError(endpoint_url="https://x"), Verdict.RETRY),
        (exceptions.ConnectionClosedError(endpoint_url="https://x"), Verdict.RETRY),
    ],
)
def test_errors_of_a_request_are_outcomes_of_its_messages(
    error: Exception, verdict: Verdict
) -> None:
    found = outcome(error)
    assert found.verdict is verdict
    assert found.code
    assert SECRET not in repr(found)


def test_a_pause_that_the_service_asks_for() -> None:
    assert outcome(answered("Throttling", retry_after="7")).retry_after_s == 7
    assert outcome(answered("Throttling", retry_after="soon")).retry_after_s is None
    assert outcome(answered("Throttling")).retry_after_s is None


@pytest.mark.parametrize(
    ("error", "kind", "hint"),
    [
        (answered("QueueDoesNotExist"), SinkRefusedError, "aws sqs create-queue --queue-name orde"),
        (answered("AccessDenied", 403), SinkRefusedError, "Allow sqs:SendMessage"),
        (answered("KMS.AccessDeniedException"), SinkRefusedError, "kms:GenerateDataKey"),
        (answered("InvalidClientTokenId", 403), SinkRefusedError, "Check access_key_id"),
        (answered("SignatureDoesNotMatch", 403), SinkRefusedError, "Check access_key_id"),
        (answered("ExpiredTokenException", 403), SinkUnreachableError, "Renew the credentials"),
        (answered("403", 403), SinkRefusedError, "proxies"),
        (answered("404", 404), SinkRefusedError, "endpoint_url"),
        (answered("InvalidAction"), SinkRefusedError, "endpoint_url"),
        (answered("AccessDenied", 403, "AssumeRole"), SinkRefusedError, "sts:AssumeRole"),
        (answered("Throttling", 400, "AssumeRole"), SinkUnreachableError, ""),
        (exceptions.NoCredentialsError(), SinkRefusedError, "Check access_key_id"),
        (exceptions.ProfileNotFound(profile="x"), SinkRefusedError, "Authentication"),
        (exceptions.NoRegionError(), SinkRefusedError, "Set region"),
        (
            exceptions.CredentialRetrievalError(provider="x", error_msg="timeout"),
            SinkUnreachableError,
            "",
        ),
        (
            exceptions.EndpointConnectionError(endpoint_url="https://x"),
            SinkUnreachableError,
            "endpoint_url",
        ),
        (
            exceptions.SSLError(endpoint_url="x", error="CERTIFICATE_VERIFY_FAILED"),
            SinkRefusedError,
            "tls_ca",
        ),
        (exceptions.SSLError(endpoint_url="x", error="WRONG_VERSION"), SinkUnreachableError, ""),
    ],
)
def test_errors_that_concern_all_messages(
    error: Exception, kind: type[SinkError], hint: str
) -> None:
    with pytest.raises(kind) as caught:
        outcome(error)
    assert hint in caught.value.hint
    assert SECRET not in f"{caught.value} {caught.value.__cause__!r}"


def test_a_failure_of_the_service_is_not_final_for_a_probe() -> None:
    assert SQS.translate(answered("500", 500)).transient
    assert SQS.translate(answered("InternalFailure", 400)).transient
    assert not SQS.translate(answered("AccessDenied", 403)).transient


def test_entries_that_have_failed() -> None:
    answer = {
        "Successful": [{"Id": "1"}],
        "Failed": [
            {"Id": "0", "Code": "InvalidMessageContents", "SenderFault": True, "Message": "no"},
            {"Id": "2", "Code": "InternalError", "SenderFault": False},
            {"Id": "3", "Code": "RequestThrottled", "SenderFault": True},
            {"Id": "4", "Code": "Whatever", "SenderFault": False},
        ],
    }
    found = outcomes_by_id(SQS, answer, count=6, destination="orders")
    verdicts = {row: each.verdict for row, each in found.items()}
    assert verdicts == {
        0: Verdict.REFUSED,
        2: Verdict.RETRY,
        3: Verdict.THROTTLED,
        4: Verdict.RETRY,
        5: Verdict.RETRY,
    }
    assert (found[0].code, found[0].response) == ("InvalidMessageContents", "no")
    assert found[5] is NO_RESULT
    assert outcomes_by_id(SQS, {}, count=1, destination="orders") == {0: NO_RESULT}
    denied = {"Failed": [{"Id": "0", "Code": "KMS.NotFoundException", "SenderFault": True}]}
    with pytest.raises(SinkRefusedError):
        outcomes_by_id(SQS, denied, count=1, destination="orders")


@pytest.mark.parametrize("sender_fault", [True, False])
def test_results_by_row(sender_fault: bool) -> None:
    results = [
        {"SequenceNumber": "1"},
        {"ErrorCode": "ProvisionedThroughputExceededException", "ErrorMessage": "slow"},
        {"ErrorCode": "InternalFailure"},
        {"ErrorCode": "Whatever"},
        {},
    ]

    def found(count: int) -> dict[int, Outcome]:
        return dict(
            outcomes_by_row(
                SQS,
                results,
                count=count,
                accepted="SequenceNumber",
                sender_fault=sender_fault,
                destination="orders",
            )
        )

    verdicts = {row: each.verdict for row, each in found(5).items()}
    other = Verdict.REFUSED if sender_fault else Verdict.RETRY
    assert verdicts == {1: Verdict.THROTTLED, 2: Verdict.RETRY, 3: other, 4: Verdict.RETRY}
    assert found(6) == dict.fromkeys(range(6), NO_RESULT)
