"""Errors as answers: the status of a response, and the text and hint that it shows."""

from __future__ import annotations

from starlette.exceptions import HTTPException

from tailrace.errors import (
    ConfigError,
    ParameterError,
    PostgresError,
    StorageError,
    TailraceError,
)

_NOT_FOUND = "there is no "


class RefusedError(HTTPException):
    """A response that keeps the error it comes from."""

    def __init__(self, status: int, error: TailraceError) -> None:
        super().__init__(status, f"{error.code}: {error}")
        self.error = error
        self.hint = error.hint


def status_of(error: TailraceError | OSError) -> RefusedError:
    """The response to an error of a view or an action.

    >>> status_of(ConfigError("there is no pipeline 'x'")).status_code
    404
    """
    if isinstance(error, OSError):
        error = StorageError(str(error))
    if isinstance(error, ParameterError):
        return RefusedError(400, error)
    if isinstance(error, ConfigError):
        return RefusedError(404 if str(error).startswith(_NOT_FOUND) else 409, error)
    return RefusedError(502 if isinstance(error, PostgresError) else 503, error)


def explained(error: HTTPException) -> tuple[str, str, str]:
    """Code, text and hint of an error."""
    if isinstance(error, RefusedError):
        return error.error.code, str(error.error), error.error.hint
    return "", error.detail, ""
