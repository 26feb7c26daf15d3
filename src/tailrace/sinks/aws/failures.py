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
from typing import TYPE_CHECKING, Any

from botocore import exceptions

from tailrace.errors import SinkRefusedError, SinkUnreachableError
from tailrace.sinks.outcome import Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tailrace.errors import SinkError

_THROTTLED = {
    "Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled",
    "RequestThrottledException", "TooManyRequestsException", "RequestLimitExceeded",
    "ProvisionedThroughputExceededException", "LimitExceededException", "BandwidthLimitExceeded",
    "SlowDown", "PriorRequestNotComplete", "KmsThrottled", "KMSThrottlingException",
}  # fmt: skip
_AGAIN = {
    "InternalFailure", "InternalError", "InternalErrorException", "InternalException",
    "InternalFailureException", "InternalServerError", "ServiceUnavailable",
    "ServiceUnavailableException", "RequestTimeout", "RequestTimeoutException", "RequestExpired",
}  # fmt: skip
_MISSING = {
    "QueueDoesNotExist", "NonExistentQueue", "NotFound", "NotFoundException",
    "ResourceNotFoundException", "QueueDeletedRecently", "ResourceNotFound",
}  # fmt: skip
_PERMISSION = {
    "AccessDenied", "AccessDeniedException", "AuthorizationError", "AuthorizationErrorException",
    "NotAuthorized", "UnauthorizedOperation",
}  # fmt: skip
_DENIED = _PERMISSION | {
    "KmsAccessDenied", "KMSAccessDeniedException", "KMSAccessDenied", "KmsDisabled",
    "KMSDisabledException", "KMSDisabled", "KmsNotFound", "KMSNotFoundException", "KMSNotFound",
    "KmsInvalidState", "KMSInvalidStateException", "KMSInvalidState", "KmsInvalidKeyUsage",
    "KmsOptInRequired", "KMSOptInRequired", "InvalidSecurity", "InvalidSecurityException",
    "NotAuthorizedForSourceException", "NotAuthorizedForDetailTypeException",
    "InvalidAccountIdException",
}  # fmt: skip
_LOGIN = {
    "InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch",
    "InvalidSignatureException", "IncompleteSignature", "IncompleteSignatureException",
    "MissingAuthenticationToken", "MissingAuthenticationTokenException", "InvalidAccessKeyId",
    "AuthFailure", "OptInRequired", "RequestTimeTooSkewed",
}  # fmt: skip
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"}
_OF_ALL = _MISSING | _DENIED | _LOGIN | _EXPIRED
_CREDENTIALS = (
    "Check access_key_id and secret_access_key of the sink, or the credentials of the environment: "
    "docs/guides/aws.md, Authentication."
)
_UNREACHABLE = (
    "Check region and endpoint_url of the sink, and the way to the service. The log keeps every "
    "change."
)
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
        code = _plain(code)
        if code in _OF_ALL:
            raise self._error(code, message, destination)
        if code in _THROTTLED:
            verdict = Verdict.THROTTLED
        elif sender_fault and code not in _AGAIN:
            verdict = Verdict.REFUSED
        else:
            verdict = Verdict.RETRY
        return Outcome(
            verdict=verdict,
            code=code,
            reason=f"{self.name} answers {code}",
            response=_first_line(message),
        )

    def outcome_of_request(self, error: Exception, *, destination: str) -> Outcome:
        """The outcome of all messages of a failed request; raises what concerns all messages."""
        if isinstance(error, exceptions.ClientError) and error.operation_name != "AssumeRole":
            code, message, status = _parts(error)
            found = self.outcome(code, message, sender_fault=status < 500, destination=destination)
            return replace(found, retry_after_s=_retry_after_s(error))
        if isinstance(error, exceptions.ReadTimeoutError):
            return self._lost("TIMEOUT", "has not answered in time")
        if isinstance(error, exceptions.HTTPClientError):
            return self._lost("CONNECTION_LOST", "has closed the connection")
        raise self.translate(error, destination=destination) from None

    def translate(self, error: Exception, *, destination: str = "") -> SinkError:
        """The error of the sink for one that concerns more than a message."""
        if isinstance(error, exceptions.ClientError):
            code, message, _ = _parts(error)
            if error.operation_name == "AssumeRole":
                return _unassumed(error)
            return self._error(code, message, destination)
        text = f"{self._named(destination)}: {_first_line(str(error))}"
        match error:
            case exceptions.SSLError() if "CERTIFICATE" in str(error).upper():
                return SinkRefusedError(text, hint="Check tls_ca and endpoint_url of the sink.")
            case exceptions.NoRegionError():
                return SinkRefusedError(text, hint="Set region of the sink, such as eu-central-1.")
            case (
                exceptions.ConnectionError()
                | exceptions.HTTPClientError()
                | exceptions.CredentialRetrievalError()
                | exceptions.MetadataRetrievalError()
            ):
                return SinkUnreachableError(text, hint=_UNREACHABLE)
            case _:
                return SinkRefusedError(text, hint=_CREDENTIALS)

    def denies(self, error: Exception) -> bool:
        """Whether the login is valid and lacks a permission."""
        return isinstance(error, exceptions.ClientError) and _parts(error)[0] in _PERMISSION

    def _error(self, code: str, message: str, destination: str) -> SinkError:
        code = _plain(code)
        text = f"{self._named(destination)}: {self.name} answers {code}: {_first_line(message)}"
        if code in _EXPIRED:
            return SinkUnreachableError(text, hint="Renew the credentials or the session_token.")
        if code in _THROTTLED or code in _AGAIN:
            return SinkUnreachableError(text)
        return SinkRefusedError(text, hint=self._hint(code, destination))

    def _hint(self, code: str, destination: str) -> str:
        if code in _MISSING:
            name = destination.rpartition(":")[2].rpartition("/")[2]
            return f"Create the {self.kind}: {self.create} {name}, or correct its name."
        if code in _DENIED:
            return (
                f"Allow {self.permission} on the {self.kind}, and kms:GenerateDataKey and "
                "kms:Decrypt on its key if it is encrypted: docs/guides/aws.md, Permissions."
            )
        return _CREDENTIALS if code in _LOGIN else "Check the settings of the sink."

    def _named(self, destination: str) -> str:
        return f"{self.kind} {destination}" if destination else self.name

    def _lost(self, code: str, what: str) -> Outcome:
        return Outcome(verdict=Verdict.RETRY, code=code, reason=f"{self.name} {what}")


def outcomes_of_failed(
    service: Service, failed: Iterable[Mapping[str, Any]], *, destination: str
) -> Mapping[int, Outcome]:
    """The outcomes that the `Failed` entries of an answer of SQS or SNS mean, by row."""
    return {
        int(each["Id"]): service.outcome(
            each.get("Code", ""),
            each.get("Message", ""),
            sender_fault=bool(each.get("SenderFault")),
            destination=destination,
        )
        for each in failed
    }


def _unassumed(error: exceptions.ClientError) -> SinkError:
    code, message, status = _parts(error)
    text = f"the role cannot be assumed: {code}: {_first_line(message)}"
    if code in _THROTTLED or code in _EXPIRED or status >= 500:
        return SinkUnreachableError(text)
    return SinkRefusedError(
        text, hint="Allow sts:AssumeRole on role_arn, and let the role trust these credentials."
    )


def _plain(code: str) -> str:
    """A code without its name space.

    >>> _plain("AWS.SimpleQueueService.NonExistentQueue"), _plain("com.amazonaws.sqs#Throttling")
    ('NonExistentQueue', 'Throttling')
    """
    return code.rpartition("#")[2].rpartition(".")[2]


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:_EXCERPT]


def _parts(error: exceptions.ClientError) -> tuple[str, str, int]:
    """Code, message and status of an answer."""
    fields, about = error.response.get("Error", {}), error.response.get("ResponseMetadata", {})
    status = int(about.get("HTTPStatusCode", 0))
    return _plain(str(fields.get("Code", ""))), str(fields.get("Message", "")), status


def _retry_after_s(error: exceptions.ClientError) -> float | None:
    headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    after = str(headers.get("retry-after", ""))
    return float(after[:9]) if after.isascii() and after.isdigit() else None
