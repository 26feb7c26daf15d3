"""One HTTP POST, for the channels that are one. Redirects are not followed."""

from __future__ import annotations

import http.client
import ssl
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tailrace import __version__
from tailrace.errors import AlertUndeliveredError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pydantic import SecretStr

_OK = range(200, 300)


def post(
    url: SecretStr,
    body: bytes,
    headers: Mapping[str, str],
    *,
    timeout_s: float,
    tls_ca: Path | None = None,
) -> None:
    """Post JSON. An answer but 2xx is a failure."""
    parts = urlsplit(url.get_secret_value())
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    given = {
        "content-type": "application/json; charset=utf-8",
        "user-agent": f"tailrace/{__version__}",
        **headers,
    }
    try:
        connection = _connection(parts.scheme, parts.hostname or "", parts.port, timeout_s, tls_ca)
        try:
            connection.request("POST", target, body, given)
            status = connection.getresponse().status
        finally:
            connection.close()
    except TimeoutError as error:
        raise AlertUndeliveredError(f"no answer within {timeout_s:g} s") from error
    except ssl.SSLError as error:
        raise AlertUndeliveredError(f"TLS failed: {error.reason}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise AlertUndeliveredError(f"the receiver cannot be reached: {reason}") from None
    if status not in _OK:
        raise AlertUndeliveredError(f"the receiver answered {status}")


def _connection(
    scheme: str, host: str, port: int | None, timeout_s: float, tls_ca: Path | None
) -> http.client.HTTPConnection:
    if scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=timeout_s)
    context = ssl.create_default_context(cafile=tls_ca)
    return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
