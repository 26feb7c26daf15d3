"""Requests to a cluster. The only importer of elastic-transport.

A node whose connection fails is left out for a while, and the request goes to another one. That it
may arrive twice then does no harm. What else is sent again, and when, is decided by
`tailrace.sinks.requests`.
"""

from __future__ import annotations

import base64
import contextlib
import ssl
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
from elastic_transport import (
    ConnectionError,  # noqa: A004 - the library's name
    ConnectionTimeout,
    NodeConfig,
    SerializationError,
    Serializer,
    TlsError,
    Transport,
    TransportError,
)
from urllib3.exceptions import NewConnectionError

from tailrace import __version__
from tailrace.errors import SinkRefusedError, SinkUnreachableError
from tailrace.sinks.requests.statuses import EXCERPT_BYTES

if TYPE_CHECKING:
    from tailrace.sinks.search.settings import SearchSettings

_MIMETYPES = ("application/json", "application/x-ndjson", "application/*", "text/*")
_LOGIN = "Check `user` and `password`, or the key or token, of the sink."
_RIGHTS = "Grant the user what docs/guides/opensearch.md lists, Permissions."


class NoAnswerError(Exception):
    """A request has no answer. It may have arrived."""


class Answer(NamedTuple):
    """The answer to a request."""

    status: int
    body: bytes
    retry_after: str = ""

    def json(self) -> Any:
        """The body; None if it is not JSON."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return None


class _Bytes(Serializer):
    """Bodies as they are: they are built, and read, where more is known about them."""

    def dumps(self, data: bytes) -> bytes:
        return data

    def loads(self, data: bytes) -> bytes:
        return data


class Client:
    """Connections to the nodes of a cluster, for several threads."""

    def __init__(self, settings: SearchSettings) -> None:
        self._timeout_s = settings.timeout_s
        self._where = ", ".join(f"{node.host}:{node.port}" for node in settings.nodes)
        self._headers = {"content-type": "application/json", "accept": "application/json"}
        self._headers |= _authorization(settings)
        context = _tls(settings) if settings.nodes[0].scheme == "https" else None
        self._transport = Transport(
            [
                NodeConfig(
                    scheme=node.scheme,
                    host=node.host,
                    port=node.port,
                    path_prefix=node.path,
                    headers={"user-agent": f"tailrace/{__version__}"},
                    connections_per_node=settings.concurrency + 1,
                    request_timeout=settings.timeout_s,
                    http_compress=settings.compression == "gzip",
                    ssl_context=context,
                )
                for node in settings.nodes
            ],
            serializers=dict.fromkeys(_MIMETYPES, _Bytes()),
            max_retries=len(settings.nodes) - 1,
            retry_on_status=(),
            meta_header=False,
        )

    def request(self, method: str, target: str, body: bytes | None = None) -> Answer:
        """Send a request.

        An error is raised if the login is refused, and `SinkUnreachableError` if the request cannot
        have arrived. `NoAnswerError`: nobody knows.
        """
        try:
            found = self._transport.perform_request(
                method, target, body=body, headers=self._headers
            )
        except TlsError as error:
            reason = f"{self._where}: {error.__cause__}"
            if "certificate" not in reason.lower():
                raise NoAnswerError(reason) from error
            raise SinkRefusedError(
                reason, hint="Check tls_ca, and the certificates of server and client."
            ) from error
        except ConnectionTimeout as error:
            raise NoAnswerError(
                f"{self._where} has not answered within {self._timeout_s:g} s"
            ) from error
        except ConnectionError as error:
            if isinstance(error.__cause__, NewConnectionError):
                reason = f"{self._where} does not answer: {error.__cause__}"
                raise SinkUnreachableError(reason) from error
            reason = f"the connection to {self._where} was lost: {error.__cause__}"
            raise NoAnswerError(reason) from error
        except (TransportError, SerializationError) as error:
            raise NoAnswerError(f"{self._where}: the answer is invalid: {error}") from error
        headers = found.meta.headers
        answer = Answer(found.meta.status, found.body or b"", headers.get("retry-after") or "")
        self._check_login(answer)
        return answer

    def ask(self, method: str, target: str, body: object = None) -> Answer:
        """Send a request that may be sent again, whatever has become of it."""
        try:
            return self.request(method, target, None if body is None else orjson.dumps(body))
        except NoAnswerError as error:
            raise SinkUnreachableError(str(error)) from error

    def unexpected(self, answer: Answer, what: str) -> SinkUnreachableError | SinkRefusedError:
        """The error of a request that was not carried out."""
        excerpt = answer.body[:EXCERPT_BYTES].decode("utf-8", "replace")
        reason = f"{self._where} answers {answer.status} to {what}: {excerpt}"
        passing = answer.status >= 500 or answer.status in (408, 429)
        return SinkUnreachableError(reason) if passing else SinkRefusedError(reason)

    def _check_login(self, answer: Answer) -> None:
        if answer.status == 401:
            raise SinkRefusedError(f"{self._where} refuses the login", hint=_LOGIN)
        if answer.status == 403:
            raise refused_right(self._where, answer.body.decode("utf-8", "replace"))

    def close(self) -> None:
        """Close all connections."""
        with contextlib.suppress(Exception):
            self._transport.close()


def refused_right(where: str, reason: str) -> SinkRefusedError:
    """The error of a missing permission."""
    return SinkRefusedError(f"{where}: permission denied: {reason[:EXCERPT_BYTES]}", hint=_RIGHTS)


def _authorization(settings: SearchSettings) -> dict[str, str]:
    for name, scheme in settings.authorizations.items():
        secret = settings.secret(name)
        if name == "password":
            secret = base64.b64encode(f"{settings.user}:{secret}".encode()).decode()
        return {"authorization": f"{scheme} {secret}"}
    return {}


def _tls(settings: SearchSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca)
        if settings.tls_certificate is not None and settings.tls_key is not None:
            context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except OSError as error:
        raise SinkRefusedError(
            f"the TLS certificates cannot be read: {error}",
            hint="Check tls_ca, tls_certificate and tls_key of the sink.",
        ) from error
    return context
