"""Errors of RabbitMQ and of py-amqp, translated into Tailrace errors.

An error of AMQP closes its channel or the connection, and has a reply code.

| RabbitMQ says                                               | Tailrace                          |
|-------------------------------------------------------------|-----------------------------------|
| no answer, connection lost, 320 shut down, 404, 405, 5xx    | SINK_UNREACHABLE, retried         |
| 506 out of resources                                        | SINK_FULL, retried                |
| 402 virtual host, 403 access, 406 precondition, 530 ...     | SINK_REFUSED                      |
| certificates that do not fit                                | SINK_REFUSED                      |

404 is retried: the exchange existed when it was looked up, and what is missing then is refused per
message.
"""

from __future__ import annotations

import re
import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING

from amqp import exceptions

from tailrace.errors import SinkError, SinkFullError, SinkRefusedError, SinkUnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterator

_ACCESS = "Check `user` and `password` of the sink, and the user's permissions on exchanges."
_HINTS = {
    402: "Check the virtual host of the sink.",
    403: _ACCESS,
    406: "Compare `declare`, `queue_type` and `queue_arguments` with what exists.",
    530: "Check the virtual host of the sink, and the user's permission to use it.",
}
_FULL = {506}
_LIMIT = re.compile(r"larger than (?:the )?(?:max|configured max) size (\d+)")
_OTHER_HINT = "Compare the settings of the sink, also `tls_`, with those of the broker."


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Raise Tailrace errors for those of py-amqp. `what` names the broker."""
    try:
        yield
    except (exceptions.AMQPError, OSError) as error:
        raise translate_error(error, what) from error


def translate_error(error: Exception, what: str) -> SinkError:
    """The Tailrace error for an error of py-amqp."""
    code = getattr(error, "reply_code", None) or 0
    text = f"{what}: {_text(error)}"
    if code in _FULL:
        return SinkFullError(text, hint="Raise the limits of the broker: see its log.")
    if limit := _LIMIT.search(text):
        return SinkRefusedError(text, hint=f"Set max_message_bytes to at most {limit[1]}.")
    if code in _HINTS:
        return SinkRefusedError(text, hint=_HINTS[code])
    if any(_is_certificate(link) for link in _chain(error)):
        return SinkRefusedError(text, hint=_OTHER_HINT)
    return SinkUnreachableError(text)


def _text(error: Exception) -> str:
    text = getattr(error, "reply_text", None) or str(error) or type(error).__name__
    code = getattr(error, "reply_code", None)
    return f"{code} {text}" if code else str(text)


def _is_certificate(error: BaseException) -> bool:
    """Whether one of the sides rejects the certificate of the other."""
    return isinstance(error, ssl.SSLCertVerificationError) or (
        isinstance(error, ssl.SSLError) and "ALERT" in str(error).upper()
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
