"""`Http`: the sink. A message counts once its request is answered with 2xx.

Messages of one key are never in two requests at a time (`tailrace.sinks.requests`). An answer that
does not arrive leaves open whether the receiver has the message: it is sent again, with the same
`webhook-id`, by which a receiver recognises it.
"""

from __future__ import annotations

import gzip
import ssl
import time
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import httpcore
import numpy as np
import pyarrow.compute as pc

from tailrace import __version__
from tailrace.errors import PoisonedError, SinkRefusedError, SinkUnreachableError
from tailrace.sinks.http.addresses import CheckedAddresses
from tailrace.sinks.http.answers import EXCERPT_BYTES, outcome_of
from tailrace.sinks.http.destination import is_path
from tailrace.sinks.http.signature import Signer
from tailrace.sinks.outcome import Outcome, Verdict
from tailrace.sinks.requests.engine import Requests

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from tailrace.position import Position
    from tailrace.sinks.contract import Receipt
    from tailrace.sinks.http.settings import HttpSink

_KEEP_ALIVE_S = 30.0


class Http:
    """Sends messages to one receiver. `name` is the pipeline's."""

    def __init__(
        self, settings: HttpSink, *, name: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._settings = settings
        self._name = name
        self._clock = clock
        self._url = settings.url.get_secret_value().rstrip("/")
        secret = settings.secret.get_secret_value()
        self._signer = Signer(secret) if secret else None
        self._headers = [
            ("user-agent", f"tailrace/{__version__}"),
            ("content-type", settings.content_type),
            *((key, value.get_secret_value()) for key, value in settings.headers.items()),
        ]
        if settings.compression == "gzip":
            self._headers.append(("content-encoding", "gzip"))
        self._pool: httpcore.ConnectionPool | None = None
        self._requests: Requests | None = None

    def open(self, after: Position) -> None:
        """Forget what was not flushed. Connections are made when they are needed."""
        del after
        self.close()
        self._pool = connections(self._settings)
        self._requests = Requests(self._send, self._settings.limits)

    def inspect(self, batch: pa.RecordBatch) -> Mapping[int, Outcome]:
        """The rows that are too large, and those whose path is invalid."""
        self._require_open()
        errors: dict[int, PoisonedError] = {}
        for path in pc.unique(batch.column("destination")).to_pylist():
            if not is_path(path):
                shown = repr(path[:200].decode("utf-8", "replace"))
                error = PoisonedError(
                    f"its destination {shown} is not a valid path",
                    hint="A path starts with one `/` and has no blanks and no `#`.",
                )
                rows = pc.indices_nonzero(pc.equal(batch.column("destination"), path)).to_pylist()
                errors.update(dict.fromkeys(rows, error))
        limit = self._settings.max_message_bytes
        sizes = pc.binary_length(batch.column("payload")).to_numpy()
        for row in np.flatnonzero(sizes > limit).tolist():
            errors[row] = PoisonedError(
                f"it has {sizes[row]} bytes, max_message_bytes is {limit}",
                hint="Raise max_message_bytes, or exclude large columns.",
            )
        return {row: Outcome.refused(error) for row, error in errors.items()}

    def write(self, batch: pa.RecordBatch) -> None:
        """Send messages."""
        requests = self._require_open()
        try:
            requests.take(batch)
        except BaseException:
            self.close()
            raise

    def flush(self) -> Receipt:
        """Wait for every answer."""
        requests = self._require_open()
        try:
            return requests.wait()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close all connections. Messages without an answer may have arrived."""
        requests, self._requests = self._requests, None
        pool, self._pool = self._pool, None
        if requests is not None:
            requests.close()
        if pool is not None:
            pool.close()

    def _require_open(self) -> Requests:
        if self._requests is None:
            raise SinkUnreachableError(f"the sink of pipeline {self._name} is not open")
        return self._requests

    def _send(self, rows: pa.RecordBatch) -> Mapping[int, Outcome]:
        """One request. Called by several threads."""
        path = rows.column("destination")[0].as_py().decode()
        payloads = rows.column("payload").to_pylist()
        body = payloads[0] if self._settings.body == "message" else array_of(payloads)
        name = request_id(rows.column("id").to_pylist())
        outcome = self._post(self._url + path if path != "/" else self._url, name, body)
        return {} if outcome is None else dict.fromkeys(range(rows.num_rows), outcome)

    def _post(self, url: str, name: str, body: bytes) -> Outcome | None:
        """The outcome of a request; None if its messages were accepted."""
        moment_s = int(self._clock())
        headers = [*self._headers, ("webhook-id", name), ("webhook-timestamp", str(moment_s))]
        if self._signer is not None:
            headers.append(("webhook-signature", self._signer.sign(name, moment_s, body)))
        if self._settings.compression == "gzip":
            body = gzip.compress(body, compresslevel=1)
        pool, timeout_s = self._pool, self._settings.timeout_s
        if pool is None:
            raise SinkUnreachableError(f"the sink of pipeline {self._name} is closed")
        timeouts = dict.fromkeys(("connect", "read", "write", "pool"), timeout_s)
        try:
            with pool.stream(
                self._settings.method,
                url,
                headers=headers,
                content=body,
                extensions={"timeout": timeouts},
            ) as response:
                return outcome_of(
                    response.status,
                    retry_after=_header(response, b"retry-after"),
                    body=_excerpt(response),
                )
        except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
            host = urlsplit(url).netloc
            raise SinkUnreachableError(f"{host} does not answer: {error}") from error
        except httpcore.TimeoutException:
            return _lost("TIMEOUT", f"the receiver has not answered within {timeout_s:g} s")
        except (httpcore.NetworkError, httpcore.ProtocolError) as error:
            return _lost("CONNECTION_LOST", f"the connection to the receiver was lost: {error}")


def connections(settings: HttpSink) -> httpcore.ConnectionPool:
    """A pool of connections that are kept between requests."""
    return httpcore.ConnectionPool(
        ssl_context=_tls(settings),
        max_connections=settings.concurrency,
        max_keepalive_connections=settings.concurrency,
        keepalive_expiry=_KEEP_ALIVE_S,
        http2=settings.http2,
        network_backend=CheckedAddresses(allow_private=settings.allow_private),
    )


def _tls(settings: HttpSink) -> ssl.SSLContext:
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


def array_of(payloads: list[bytes]) -> bytes:
    """A JSON array of documents.

    >>> array_of([b'{"id":1}', b'{"id":2}'])
    b'[{"id":1},{"id":2}]'
    """
    return b"[%s]" % b",".join(payloads)


def request_id(ids: list[bytes]) -> str:
    """The id of a request: that of its message, or of the first one and how many follow.

    >>> request_id([b"16b3748-0"]), request_id([b"16b3748-0", b"16b3748-1", b"16b3748-2"])
    ('16b3748-0', '16b3748-0+2')
    """
    first = quote(ids[0].decode("utf-8", "replace"), safe="!#$%&'*+,-./:;=?@[]^_`{|}~")
    return first if len(ids) == 1 else f"{first}+{len(ids) - 1}"


def _header(response: httpcore.Response, name: bytes) -> str:
    found = [value for key, value in response.headers if key.lower() == name]
    return found[0].decode("latin-1") if found else ""


def _excerpt(response: httpcore.Response) -> bytes:
    """The beginning of the body. A longer one is not read, which costs its connection."""
    found = b""
    for piece in response.iter_stream():
        found += piece
        if len(found) > 16 * EXCERPT_BYTES:
            break
    return found[:EXCERPT_BYTES]


def _lost(code: str, reason: str) -> Outcome:
    return Outcome(verdict=Verdict.RETRY, code=code, reason=reason)


def probe(settings: HttpSink, *, name: str) -> None:
    """Fail unless something accepts connections at the address, and its certificate is valid.

    A request is sent with the method OPTIONS, which changes nothing. Any answer will do.
    """
    url = settings.url.get_secret_value()
    timeouts = dict.fromkeys(("connect", "read", "write", "pool"), settings.timeout_s)
    try:
        with connections(settings) as pool:
            pool.request("OPTIONS", url, extensions={"timeout": timeouts})
    except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError) as error:
        raise SinkUnreachableError(
            f"pipeline {name}: {urlsplit(url).netloc} does not answer: {error}"
        ) from error
