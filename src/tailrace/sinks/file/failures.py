"""Errors of the operating system, of fsspec and of its libraries as errors of the sink.

| what failed                                                  | error            |
|--------------------------------------------------------------|------------------|
| the disk or the quota is full                                | SINK_FULL        |
| permissions, credentials, a missing bucket, a read-only disk | SINK_REFUSED     |
| certificates, a missing library, an invalid request          | SINK_REFUSED     |
| anything else: no connection, timeouts, 5xx, throttling      | SINK_UNREACHABLE |

The libraries of object stores are not imported: their errors are known by the names of their
classes, and by the status of the answer.
"""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tailrace.errors import SinkFullError, SinkRefusedError, SinkUnreachableError, TailraceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tailrace.errors import SinkError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_REFUSED = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR,
    errno.ENAMETOOLONG, errno.EINVAL, errno.EMSGSIZE, errno.ENOSYS, errno.ENOTSUP, errno.EXDEV,
    errno.EREMCHG, errno.EMLINK,
}  # fmt: skip
_CREDENTIALS = {
    "NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError",
    "TokenRetrievalError", "ProfileNotFound", "ClientAuthenticationError",
    "DefaultCredentialsError", "RefreshError",
}  # fmt: skip
_CERTIFICATE = {
    "SSLError", "SSLCertVerificationError", "ClientConnectorCertificateError",
    "ClientConnectorSSLError",
}  # fmt: skip
_INVALID = {"ParamValidationError", "InvalidRegionError", "ResourceNotFoundError", "InvalidURL"}
_STATUS_REFUSED = {400, 401, 403, 404, 405, 411, 413, 501}
_SHORTEST_SECRET = 8
_HINTS = {
    "full": "Free space or raise the quota. The log keeps every change.",
    "permission": "Allow the user of Tailrace to read, write, list and delete below `url`.",
    "credentials": "Set the credentials in `options` of the sink, or those of the machine.",
    "certificate": "Let the library trust the certificate authority: docs/guides/file.md, TLS.",
    "missing": "Create the bucket, or correct `url` of the sink.",
    "library": "Install the library that the error names, for example: pip install s3fs",
    "request": "Check `url` and `options` of the sink.",
}


@contextmanager
def translated(
    what: str,
    *,
    options: Mapping[str, Any] | None = None,
    passes: type[Exception] | None = None,
) -> Iterator[None]:
    """Raise errors of a block as errors of the sink, whose texts do not contain the options."""
    try:
        yield
    except TailraceError:
        raise
    except Exception as error:
        if passes is not None and isinstance(error, passes):
            raise
        # Not chained: the library's text may quote credentials.
        raise translate(error, what, options) from None


def translate(error: Exception, what: str, options: Mapping[str, Any] | None = None) -> SinkError:
    """The error of the sink for an error of a file system."""
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    text = f"{what}: {_without_secrets(reason, options or {})}"
    names = {kind.__name__ for each in _causes(error) for kind in type(each).__mro__}
    code = error.errno if isinstance(error, OSError) else None
    if code in _FULL:
        return SinkFullError(text, hint=_HINTS["full"])
    refused = {
        "certificate": names & _CERTIFICATE,
        "credentials": names & _CREDENTIALS,
        "permission": isinstance(error, PermissionError) or code == errno.EROFS,
        "missing": isinstance(error, FileNotFoundError),
        "library": isinstance(error, ImportError),
        "request": isinstance(error, (ValueError, TypeError))
        or code in _REFUSED
        or names & _INVALID
        or _status(error) in _STATUS_REFUSED,
    }
    for fix, found in refused.items():
        if found:
            return SinkRefusedError(text, hint=_HINTS[fix])
    return SinkUnreachableError(text)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _status(error: Exception) -> int | None:
    """The status of an answer over HTTP, as the libraries of Azure and Google name it."""
    found = [getattr(error, name, None) for name in ("status_code", "code", "status")]
    return next((each for each in found if isinstance(each, int)), None)


def _without_secrets(text: str, options: Mapping[str, Any]) -> str:
    for value in options.values():
        if isinstance(value, dict):
            text = _without_secrets(text, value)
        elif isinstance(value, str) and len(value) >= _SHORTEST_SECRET:
            text = text.replace(value, "***")
    return text
