"""What an error of a service means: for its messages as an outcome, for the rest as an error.

| what failed                                              | what it is                       |
|----------------------------------------------------------|----------------------------------|
| throttling, provisioned throughput                       | throttled                        |
| 5xx, an internal failure, no answer, a lost connection   | try again                        |
| an invalid or too long message                           | refused                          |
| a missing queue, topic, stream or bus, a missing         | SINK_REFUSED: this concerns all  |
| permission, wrong credentials, an untrusted certificate  | messages                         |
| no connection, expired credentials                       | SINK_UNREACHABLE, retried        |

Errors do not quote more than the first line of what a service answers: the rest may repeat the
signed request with its session token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from botocore import exceptions

from tailrace.errors import SinkRefusedError, SinkUnreachableError
from tailrace.sinks.aws.codes import Concern, concern_of, plain
from tailrace.sinks.outcome import Outcome, Verdict

if TYPE_CHECKING:
    from tailrace.errors import SinkError

ASSUME_ROLE = "AssumeRole"
_OF_MESSAGES = {400, 413, 429}
"""Statuses below 500 that may be the fault of a message. 403 without a known code is a proxy's."""
_CREDENTIALS = (
    "Check access_key_id and secret_access_key of the sink, or the credentials of the environment: "
    "docs/guides/aws.md, Authentication."
)
_ELSEWHERE = "Check region, endpoint_url and credentials of the sink, and proxies on the way."
_HINTS = {
    Concern.LOGIN: _CREDENTIALS,
    Concern.EXPIRY: "Renew the credentials, or the session_token of the sink.",
    Concern.ENCRYPTION: (
        "Allow kms:GenerateDataKey and kms:Decrypt on the key: docs/guides/aws.md, Permissions."
    ),
}
_EXCERPT = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What errors say about a service."""

    name: str
    """As AWS writes it: `SQS`."""
    kind: str
    """What a destination is: `queue`."""
    permission: str
    """What sending needs: `sqs:SendMessage`."""
    look_up: str
    """What `tailrace check` needs to describe one."""
    client: str
    """The name of its client in botocore: `sqs`."""
    destination: str
    """What a valid destination is."""
    create: str
    """The command that creates a destination: `aws sqs create-queue --queue-name`."""

    def outcome(self, code: str, message: str, *, sender_fault: bool, destination: str) -> Outcome:
        """The outcome of a message that was not accepted; raises what concerns all messages."""
        concern = concern_of(code)
        if concern.of_all:
            raise self._error(code, message, destination)
        if concern is Concern.PACE:
            verdict = Verdict.THROTTLED
        elif sender_fault and concern is Concern.MESSAGE:
            verdict = Verdict.REFUSED
        else:
            verdict = Verdict.RETRY
        return Outcome(
            verdict=verdict,
            code=plain(code),
            reason=f"{self.name} answers {plain(code)}",
            response=_first_line(message),
        )

    def outcome_of_request(self, error: Exception, *, destination: str) -> Outcome:
        """The outcome of all messages of a failed request; raises what concerns all messages."""
        match error:
            case exceptions.ClientError() if error.operation_name != ASSUME_ROLE:
                code, message, status = _parts(error)
                of_messages = status in _OF_MESSAGES or status >= 500
                if concern_of(code) is Concern.MESSAGE and not of_messages:
                    raise self._error(code, message, destination) from None
                fault = status < 500
                found = self.outcome(code, message, sender_fault=fault, destination=destination)
                return replace(found, retry_after_s=_retry_after_s(error))
            case exceptions.ReadTimeoutError():
                return self._lost("TIMEOUT", "has not answered in time")
            case exceptions.HTTPClientError():
                return self._lost("CONNECTION_LOST", "has closed the connection")
            case _:
                raise self.translate(error, destination=destination) from None

    def translate(self, error: Exception, *, destination: str = "") -> SinkError:
        """The error of the sink for one that concerns more than a message."""
        if isinstance(error, exceptions.ClientError):
            return self._answered(error, destination)
        text = f"{self._named(destination)}: {_first_line(str(error))}"
        match error:
            case exceptions.SSLError() if "CERTIFICATE" in str(error).upper():
                return SinkRefusedError(text, hint="Check tls_ca and endpoint_url of the sink.")
            case ValueError():
                return SinkRefusedError(text, hint="Check endpoint_url of the sink.")
            case exceptions.NoRegionError():
                return SinkRefusedError(text, hint="Set region of the sink, such as eu-central-1.")
            case (
                exceptions.ConnectionError()
                | exceptions.HTTPClientError()
                | exceptions.CredentialRetrievalError()
                | exceptions.MetadataRetrievalError()
            ):
                return SinkUnreachableError(text, hint=_ELSEWHERE)
            case _:
                return SinkRefusedError(text, hint=_CREDENTIALS)

    def _answered(self, error: exceptions.ClientError, destination: str) -> SinkError:
        code, message, status = _parts(error)
        if error.operation_name == ASSUME_ROLE:
            return _unassumed(code, message, status)
        if status >= 500:
            return SinkUnreachableError(f"{self._named(destination)}: {self.name} answers {code}")
        return self._error(code, message, destination)

    def _error(self, code: str, message: str, destination: str) -> SinkError:
        text = f"{self._named(destination)}: {self.name} answers {plain(code)}: "
        text += _first_line(message)
        concern = concern_of(code)
        if concern in (Concern.EXPIRY, Concern.PACE, Concern.SERVICE):
            return SinkUnreachableError(text, hint=_HINTS.get(concern, ""))
        name = destination.rpartition(":")[2].rpartition("/")[2]
        hints = {
            Concern.DESTINATION: f"Run: {self.create} {name}. Or correct the name.",
            Concern.PERMISSION: (
                f"Allow {self.permission} on the {self.kind}: docs/guides/aws.md, Permissions."
            ),
        }
        return SinkRefusedError(text, hint=(hints | _HINTS).get(concern, _ELSEWHERE))

    def _named(self, destination: str) -> str:
        return f"{self.kind} {destination}" if destination else self.name

    def _lost(self, code: str, what: str) -> Outcome:
        return Outcome(verdict=Verdict.RETRY, code=code, reason=f"{self.name} {what}")


def denies(error: Exception) -> bool:
    """Whether the login is valid and lacks a permission."""
    return _concern_of_service(error) is Concern.PERMISSION


def throttles(error: Exception) -> bool:
    """Whether the service answers and has too much to do."""
    return _concern_of_service(error) is Concern.PACE


def _concern_of_service(error: Exception) -> Concern | None:
    if not isinstance(error, exceptions.ClientError) or error.operation_name == ASSUME_ROLE:
        return None
    return concern_of(_parts(error)[0])


def _unassumed(code: str, message: str, status: int) -> SinkError:
    text = f"the role cannot be assumed: {plain(code)}: {_first_line(message)}"
    if status >= 500 or concern_of(code) in (Concern.PACE, Concern.EXPIRY):
        return SinkUnreachableError(text)
    return SinkRefusedError(
        text, hint="Allow sts:AssumeRole on role_arn, and let the role trust these credentials."
    )


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:_EXCERPT]


def _parts(error: exceptions.ClientError) -> tuple[str, str, int]:
    """Code, message and status of an answer."""
    fields, about = error.response.get("Error", {}), error.response.get("ResponseMetadata", {})
    status = int(about.get("HTTPStatusCode", 0))
    return str(fields.get("Code", "")), str(fields.get("Message", "")), status


def _retry_after_s(error: exceptions.ClientError) -> float | None:
    headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    after = str(headers.get("retry-after", ""))
    return float(after[:9]) if after.isascii() and after.isdigit() else None
