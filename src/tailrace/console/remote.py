"""A client of `/api/v1`: the documents and actions of a system on another machine.

Redirects are not followed, so the token reaches the address of `--at` and no other. Each request
has a connection of its own, and is sent once: repeated, an action could be done twice.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from tailrace import __version__
from tailrace.console.operations import sent
from tailrace.console.page import Effect
from tailrace.errors import (
    ApiRefusedError,
    ApiUnreachableError,
    ConfigError,
    TailraceError,
    UnexpectedError,
    error_of,
)
from tailrace.settings import is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tailrace.console.operations import Body
    from tailrace.console.page import Document

_TIMEOUT_S = 60.0
_WRONG_NAME = 62
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH; 64 is that of an address."""
_CODED = re.compile(r"([A-Z][A-Z_]+): (.*)", re.DOTALL)


class Remote:
    """A server with the console, as the operations of a system."""

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        ca: Path | None = None,
        insecure: bool = False,
        pinned: bool = False,
    ) -> None:
        """`ca` are the authorities to trust; `pinned`: the very certificate of the server."""
        parts = urlsplit(url)
        self._url = url.rstrip("/")
        self._secure = parts.scheme == "https"
        self._host, self._port, self._prefix = _address(url)
        self._token = token
        if token and not self._secure and not insecure and not is_loopback(self._host):
            raise ConfigError(
                f"{self._url} would send the token without TLS, beyond this machine",
                hint="Use https:// (http.tls on that machine), or --insecure in a trusted network.",
            )
        self._context = _context(ca, pinned=pinned) if self._secure else None

    def get(self, path: str, query: Mapping[str, object] | None = None) -> Document:
        """The document of a page."""
        values = sent(query)
        return self._ask("GET", f"{path}?{urlencode(values)}" if values else path)

    def effect(self, path: str, body: Body) -> Effect:
        """What an action would do."""
        found = self._ask("POST", f"{path}?dry_run=true", body)
        lines = tuple(map(str, found.get("effect", ())))
        warning, resolved = str(found.get("warning", "")), found.get("resolved") or {}
        return Effect(lines=lines, warning=warning, resolved=resolved)

    def perform(self, path: str, body: Body) -> Document:
        """Do it."""
        return self._ask("POST", path, body)

    def _ask(self, method: str, target: str, body: Body | None = None) -> Document:
        headers = {
            "accept": "application/json",
            "connection": "close",
            "user-agent": f"tailrace/{__version__}",
        }
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        content = None if body is None else json.dumps(body).encode()
        path = f"{self._prefix}/api/v1{target}"
        try:
            with closing(self._open()) as connection:
                connection.request(method, path, body=content, headers=headers)
                with connection.getresponse() as response:
                    status, text = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        document = _parsed(text)
        if status >= 300 or document is None:
            raise self._refused(status, document, target)
        return document

    def _open(self) -> http.client.HTTPConnection:
        if self._context is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=_TIMEOUT_S, context=self._context
        )

    def _unreachable(self, error: Exception) -> TailraceError:
        if isinstance(error, ssl.SSLCertVerificationError):
            wrong_name = error.verify_code in (_WRONG_NAME, _WRONG_NAME + 2)
            return ApiUnreachableError(
                f"{self._url}: its certificate is not accepted: {error.verify_message}",
                hint="Use a name that the certificate has in --at."
                if wrong_name
                else "Name the PEM file of its authority with --ca (TAILRACE_CA).",
            )
        if isinstance(error, ssl.SSLError):
            return ApiUnreachableError(
                f"{self._url}: no TLS connection: {error.reason or error}",
                hint="Check the port. A server without http.tls has the address http://...",
            )
        if isinstance(error, http.client.HTTPException | ConnectionResetError):
            return ApiUnreachableError(
                f"{self._url} has closed the connection: {type(error).__name__}",
                hint="Check the port. A server with http.tls has the address https://...",
            )
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return ApiUnreachableError(
            f"no answer from {self._url}: {reason}",
            hint="Check that `tailrace run` runs there, http.host and http.port of its settings, "
            "and firewalls between.",
        )

    def _refused(self, status: int, document: Document | None, target: str) -> TailraceError:
        """The error of a response: that of the server, if it names one."""
        text = _printable(document.get("error", "")) if document else ""
        hint = _printable(document.get("hint", "")) if document else ""
        if match := _CODED.fullmatch(text):
            kind = error_of(match[1])
            if kind is not UnexpectedError or match[1] == UnexpectedError.code:
                return kind(match[2], hint=hint)
        if status == 401:
            return self._unknown()
        if status == 403:
            hint = "On that machine: tailrace token create --scope operate"
            return ApiRefusedError(f"{self._url}: {text or 'HTTP 403'}", hint=hint)
        if status == 400 and text:
            return ConfigError(text)
        if text and status not in (404, 405):
            return ApiRefusedError(f"{self._url}: {text}", hint=hint)
        return ApiRefusedError(
            f"{self._url} answers HTTP {status} to /api/v1{_printable(target)}",
            hint="Check --at: the address of the console, as a browser shows it at /. Both "
            "machines need the same version of Tailrace.",
        )

    def _unknown(self) -> ApiRefusedError:
        """The error of a request without a valid token."""
        how = "On that machine: tailrace token create. Pass it in TAILRACE_TOKEN or --token-file."
        if self._token:
            how = f"It has expired, was revoked, or is of another system. {how}"
        text = "does not accept the token" if self._token else "needs a token"
        return ApiRefusedError(f"{self._url} {text}", hint=how)


def _address(url: str) -> tuple[str, int, str]:
    """Host, port and path prefix of an address. Raises ConfigError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    plain = not (parts.query or parts.fragment or parts.username or parts.password)
    if parts.scheme not in ("http", "https") or not parts.hostname or not plain:
        raise ConfigError(
            f"--at must be an address such as https://tailrace.example.com:9090, got {url!r}"
            if plain
            else "--at must be an address without user, password and query",
        )
    default = http.client.HTTPS_PORT if parts.scheme == "https" else http.client.HTTP_PORT
    return parts.hostname, port or default, parts.path.rstrip("/")


def _context(ca: Path | None, *, pinned: bool) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        reason = error.strerror or "it is not a PEM file with certificates"
        raise ConfigError(f"cannot read {ca}: {reason}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if pinned:
        # It is the server's own certificate, for a name that need not be that of this machine.
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _parsed(text: bytes) -> Document | None:
    try:
        document: Any = json.loads(text)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _printable(text: object) -> str:
    """Text of a server, without control characters: it is shown on a terminal."""
    return "".join(each if each.isprintable() else " " for each in str(text))
