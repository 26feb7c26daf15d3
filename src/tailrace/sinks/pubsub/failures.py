"""What a status of gRPC means: for messages as an outcome, for the rest as an error.

| status                                                    | what it is                     |
|-----------------------------------------------------------|--------------------------------|
| RESOURCE_EXHAUSTED                                        | throttled, as long as its      |
|                                                           | RetryInfo says                 |
| UNAVAILABLE, DEADLINE_EXCEEDED, ABORTED, INTERNAL,        | try again                      |
| CANCELLED, UNKNOWN                                        |                                |
| INVALID_ARGUMENT, OUT_OF_RANGE                            | refused; of several messages,  |
|                                                           | each is sent alone             |
| NOT_FOUND, PERMISSION_DENIED, UNAUTHENTICATED, others     | SINK_REFUSED: this concerns    |
|                                                           | all messages of the topic      |
| no access token at present                                | SINK_UNREACHABLE, retried      |

FAILED_PRECONDITION concerns all messages: the topic's encryption key is disabled, for example.

A quota is one of a project in a region, not of a topic. So a pause concerns all topics of the
pipeline, and no other pipeline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.api_core.exceptions import GoogleAPICallError
from google.auth.exceptions import GoogleAuthError, TransportError
from google.rpc.error_details_pb2 import RetryInfo
from grpc import StatusCode

from tailrace.errors import SinkRefusedError, SinkUnreachableError
from tailrace.sinks.outcome import Outcome, Verdict

if TYPE_CHECKING:
    from tailrace.errors import SinkError

_VERDICTS = {
    StatusCode.RESOURCE_EXHAUSTED: Verdict.THROTTLED,
    StatusCode.UNAVAILABLE: Verdict.RETRY,
    StatusCode.DEADLINE_EXCEEDED: Verdict.RETRY,
    StatusCode.ABORTED: Verdict.RETRY,
    StatusCode.INTERNAL: Verdict.RETRY,
    StatusCode.CANCELLED: Verdict.RETRY,
    StatusCode.UNKNOWN: Verdict.RETRY,
    StatusCode.INVALID_ARGUMENT: Verdict.REFUSED,
    StatusCode.OUT_OF_RANGE: Verdict.REFUSED,
}
_TOKEN = "Getting metadata from plugin failed"  # noqa: S105 - what gRPC says without an access token
_CREDENTIALS = (
    "Check credentials_file of the sink, or the Application Default Credentials: "
    "docs/guides/pubsub.md, Authentication."
)
_PERMISSION = (
    "Grant roles/pubsub.publisher on the topic to the login: docs/guides/pubsub.md, Permissions."
)
_ELSEWHERE = "Check project, endpoint_url and credentials of the sink."
_EXCERPT = 500


def outcome_of(error: GoogleAPICallError, *, topic: str) -> Outcome:
    """The outcome of all messages of a failed request; raises what concerns all messages."""
    status = error.grpc_status_code
    verdict = _VERDICTS.get(status)
    if verdict is None or _concerns_all(error):
        raise translate(error, topic=topic) from None
    return Outcome(
        verdict=verdict,
        code=status.name,
        reason=f"Pub/Sub answers {status.name}: {_first_line(error.message)}",
        response=_first_line(error.message),
        retry_after_s=_retry_after_s(error),
    )


def translate(error: Exception, *, topic: str = "") -> SinkError:
    """The error of the sink for one that concerns more than a message."""
    named = f"topic {topic}" if topic else "Pub/Sub"
    if not isinstance(error, GoogleAPICallError):
        return _of_login(error, named)
    text = f"{named}: Pub/Sub answers {_name(error)}: {_first_line(error.message)}"
    if "CERTIFICATE_VERIFY_FAILED" in error.message:
        return SinkRefusedError(text, hint="Check tls_ca and endpoint_url of the sink.")
    if _TOKEN in error.message:
        return SinkUnreachableError(text, hint=_CREDENTIALS)
    status = error.grpc_status_code
    if _VERDICTS.get(status) in (Verdict.RETRY, Verdict.THROTTLED):
        return SinkUnreachableError(text, hint=_ELSEWHERE)
    return SinkRefusedError(text, hint=_hint(status, topic))


def denies(error: GoogleAPICallError) -> bool:
    """Whether the login is valid and lacks a permission."""
    return bool(error.grpc_status_code is StatusCode.PERMISSION_DENIED)


def throttles(error: GoogleAPICallError) -> bool:
    """Whether the service answers and has too much to do."""
    return _VERDICTS.get(error.grpc_status_code) is Verdict.THROTTLED


def _concerns_all(error: GoogleAPICallError) -> bool:
    return "CERTIFICATE_VERIFY_FAILED" in error.message or _TOKEN in error.message


def _hint(status: StatusCode, topic: str) -> str:
    match status:
        case StatusCode.NOT_FOUND if topic:
            _, project, _, name = topic.split("/")
            create = f"gcloud pubsub topics create {name} --project={project}"
            return f"Run: {create}. Or correct the name."
        case StatusCode.PERMISSION_DENIED:
            return _PERMISSION
        case StatusCode.UNAUTHENTICATED:
            return _CREDENTIALS
        case StatusCode.FAILED_PRECONDITION:
            return "Check the topic: its encryption key, for example."
        case _:
            return _ELSEWHERE


def _of_login(error: Exception, named: str) -> SinkError:
    text = f"{named}: {_first_line(str(error))}"
    match error:
        case TransportError():
            return SinkUnreachableError(text, hint=_CREDENTIALS)
        case GoogleAuthError() if error.retryable:
            return SinkUnreachableError(text, hint=_CREDENTIALS)
        case _:
            return SinkRefusedError(text, hint=_CREDENTIALS)


def _name(error: GoogleAPICallError) -> str:
    status = error.grpc_status_code
    return str(error.code) if status is None else str(status.name)


def _retry_after_s(error: GoogleAPICallError) -> float | None:
    for detail in error.details:
        if isinstance(detail, RetryInfo):
            return float(detail.retry_delay.ToTimedelta().total_seconds())
    return None


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:_EXCERPT]
