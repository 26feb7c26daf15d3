"""The codes of errors of AWS, and what each of them concerns.

Services spell the same code in several ways: `AWS.SimpleQueueService.NonExistentQueue`,
`com.amazonaws.sqs#QueueDoesNotExist`, `KMSAccessDeniedException` and `KmsAccessDenied`.
"""

from __future__ import annotations

import enum


class Concern(enum.Enum):
    """What has to change so that a request is accepted."""

    PACE = "throttled"
    SERVICE = "a failure of the service, which passes"
    DESTINATION = "the destination is missing"
    PERMISSION = "the login lacks a permission"
    ENCRYPTION = "the key of the destination cannot be used"
    LOGIN = "the credentials are wrong"
    EXPIRY = "the credentials have expired"
    ENDPOINT = "the endpoint is not of this service"
    MESSAGE = "the message, or nothing that is known here"

    @property
    def of_all(self) -> bool:
        """Whether it concerns all messages of a destination."""
        return self not in (Concern.PACE, Concern.SERVICE, Concern.MESSAGE)


_CODES = {
    Concern.PACE: (
        "Throttling Throttled RequestThrottled TooManyRequests RequestLimitExceeded SlowDown "
        "ProvisionedThroughputExceeded LimitExceeded BandwidthLimitExceeded "
        "PriorRequestNotComplete KMSThrottled KMSThrottling 429"
    ),
    Concern.SERVICE: (
        "Internal InternalError InternalFailure InternalServerError ServiceUnavailable "
        "RequestTimeout RequestExpired"
    ),
    Concern.DESTINATION: (
        "QueueDoesNotExist NonExistentQueue QueueDeletedRecently NotFound ResourceNotFound"
    ),
    Concern.PERMISSION: (
        "AccessDenied AuthorizationError NotAuthorized UnauthorizedOperation InvalidAccountId "
        "NotAuthorizedForSource NotAuthorizedForDetailType"
    ),
    Concern.ENCRYPTION: (
        "KMSAccessDenied KMSDisabled KMSNotFound KMSInvalidState KMSInvalidKeyUsage "
        "KMSOptInRequired InvalidSecurity"
    ),
    Concern.LOGIN: (
        "InvalidClientTokenId UnrecognizedClient SignatureDoesNotMatch InvalidSignature "
        "IncompleteSignature MissingAuthenticationToken InvalidAccessKeyId AuthFailure "
        "OptInRequired RequestTimeTooSkewed"
    ),
    Concern.EXPIRY: "ExpiredToken TokenRefreshRequired",
    Concern.ENDPOINT: (
        "InvalidAction UnknownOperation UnsupportedOperation InvalidAddress InvalidEndpoint "
        "MalformedQueryString"
    ),
}
_CONCERNS = {
    name: concern for concern, names in _CODES.items() for name in names.casefold().split()
}


def plain(code: str) -> str:
    """A code without its name space.

    >>> plain("AWS.SimpleQueueService.NonExistentQueue"), plain("com.amazonaws.sqs#Throttling")
    ('NonExistentQueue', 'Throttling')
    >>> plain("KMS.NotFoundException")
    'KMSNotFoundException'
    """
    return code.rpartition("#")[2].replace("KMS.", "KMS").rpartition(".")[2]


def concern_of(code: str) -> Concern:
    """What a code concerns.

    >>> concern_of("KmsThrottled").name, concern_of("KMSThrottlingException").name
    ('PACE', 'PACE')
    >>> concern_of("InvalidMessageContents").name
    'MESSAGE'
    """
    return _CONCERNS.get(plain(code).removesuffix("Exception").casefold(), Concern.MESSAGE)
