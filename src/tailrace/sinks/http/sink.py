"""`Http`: the sink. A message counts once its request is answered with 2xx.

Messages of one key are never in two requests at a time (`tailrace.sinks.requests`). An answer that
does not arrive leaves open whether the receiver has the message: it is sent again, with the same
`webhook-id`, by which a receiver recognises it.

Requests are sent again as `retry` of the pipeline describes.
"""

from __future__ import annotations

import gzip
import hashlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import httpcore

from tailrace import __version__, headers
from tailrace.errors import PoisonedError, SinkRefusedError, SinkUnreachableError
from tailrace.sinks.documents import json_flaw
from tailrace.sinks.http.answers import outcomes_of
from tailrace.sinks.http.connections import Connections
from tailrace.sinks.http.destination import is_path, split
from tailrace.sinks.http.signature import Signer
from tailrace.sinks.outcome import Outcome, Verdict
from tailrace.sinks.requests.sink import RequestSink

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from tailrace.sinks.contract import Lane
    from tailrace.sinks.http.connections import Headers
    from tailrace.sinks.http.settings import HttpSink

_BODY_BYTES = 1 << 20
"""An answer may have a result for each of some thousand messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """A request that is to be signed and sent."""

    method: str
    url: httpcore.URL
    name: str
    headers: list[tuple[bytes, bytes]]
    body: bytes


class Http(RequestSink[Connections]):
    """Sends messages to one receiver."""

    def __init__(
        self, settings: HttpSink, lane: Lane, *, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(settings, lane)
        # A receiver may answer an array with a result for each message.
        self.answers_per_message = settings.body == "array"
        self._settings = settings
        self._clock = clock
        self._url = urlsplit(settings.url.get_secret_value())
        secret = settings.secret.get_secret_value()
        self._signer = Signer(secret) if secret else None
        self._headers: Headers = [
            ("host", self._url.netloc),
            ("user-agent", f"tailrace/{__version__}"),
            ("content-type", settings.content_type),
            *((key, value.get_secret_value()) for key, value in settings.headers.items()),
        ]
        if settings.compression == "gzip":
            self._headers.append(("content-encoding", "gzip"))

    def connect(self) -> Connections:
        """Connections are made by the threads that send."""
        return Connections(self._settings)

    def flaw_of(self, destination: bytes) -> PoisonedError | None:
        """A destination must be a path, after a method or alone."""
        if is_path(split(destination)[1]):
            return None
        shown = repr(destination[:200].decode("utf-8", "replace"))
        return PoisonedError(
            f"its destination {shown} is not a valid path",
            hint=(
                "A path starts with one `/` and has no blanks and no `#`. It may follow POST, PUT, "
                "PATCH or DELETE, and a blank."
            ),
        )

    def flaws(self, batch: pa.RecordBatch) -> Mapping[int, PoisonedError]:
        """In an array also the rows that are not JSON: they would make the others unreadable."""
        errors = super().flaws(batch)
        if self._settings.body == "message":
            return errors
        wrong = enumerate(map(json_flaw, batch.column("payload").to_pylist()))
        unreadable = {row: _not_json(reason) for row, reason in wrong if reason}
        return {**unreadable, **errors}

    def send(self, connection: Connections, rows: pa.RecordBatch) -> Mapping[int, Outcome]:
        """One request."""
        payloads = rows.column("payload").to_pylist()
        body = payloads[0] if self._settings.body == "message" else array_of(payloads)
        method, path = split(rows.column("destination")[0].as_py())
        request = Post(
            method=method or self._settings.method,
            url=self._url_of(path),
            name=request_id(rows.column("id").to_pylist()),
            headers=headers.pairs(rows.column("headers").slice(0, 1))[0],
            body=body,
        )
        return self._post(connection, request, count=rows.num_rows)

    def _url_of(self, path: bytes) -> httpcore.URL:
        """`url` with a path appended, as it is: nothing is decoded or normalised."""
        base = self._url.path.encode()
        return httpcore.URL(
            scheme=self._url.scheme.encode(),
            host=(self._url.hostname or "").encode(),
            port=self._url.port,
            target=(base or b"/") if path == b"/" else base.rstrip(b"/") + path,
        )

    def _post(
        self, connections: Connections, request: Post, *, count: int
    ) -> Mapping[int, Outcome]:
        """Send a request of `count` messages. Returns those that were not accepted, and why."""
        moment_s, name, body = int(self._clock()), request.name, request.body
        fields: Headers = [*self._headers, *request.headers]
        fields += [("webhook-id", name), ("webhook-timestamp", str(moment_s))]
        if self._signer is not None:
            fields.append(("webhook-signature", self._signer.sign(name, moment_s, body)))
        if self._settings.compression == "gzip":
            body = gzip.compress(body, compresslevel=1)
        timeout_s = self._settings.timeout_s
        try:
            with connections.stream(request.method, request.url, fields, body) as response:
                return outcomes_of(
                    response.status,
                    count=count,
                    array=self._settings.body == "array",
                    retry_after=_header(response, b"retry-after"),
                    body=_read(response, timeout_s),
                )
        except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
            host = request.url.host.decode()
            raise SinkUnreachableError(f"{host} does not answer: {error}") from error
        except httpcore.LocalProtocolError as error:
            raise SinkRefusedError(
                "the request is not valid HTTP", hint="Check `headers` and `url` of the sink."
            ) from error
        except httpcore.TimeoutException:
            lost = _lost("TIMEOUT", f"the receiver has not answered within {timeout_s:g} s")
        except (httpcore.NetworkError, httpcore.ProtocolError) as error:
            lost = _lost("CONNECTION_LOST", f"the connection to the receiver was lost: {error}")
        return dict.fromkeys(range(count), lost)


def _not_json(reason: str) -> PoisonedError:
    return PoisonedError(
        f"its payload is not JSON, which an array needs: {reason}",
        hint="Set `encoding: json` and a `payload` of JSON in the pipeline, or `body: message`.",
    )


def array_of(payloads: list[bytes]) -> bytes:
    """A JSON array of documents.

    >>> array_of([b'{"id":1}', b'{"id":2}'])
    b'[{"id":1},{"id":2}]'
    """
    return b"[%s]" % b",".join(payloads)


def request_id(ids: list[bytes]) -> str:
    """The id of a request: that of its message, or of the first one with a digest of all.

    >>> request_id([b"16b3748-0"]), request_id([b"16b3748-0", b"16b3748-1"])
    ('16b3748-0', '16b3748-0+38ca6158bbd7b7c2')
    """
    first = quote(ids[0].decode("utf-8", "replace"), safe="!#$%&'*+,-./:;=?@[]^_`{|}~")
    if len(ids) == 1:
        return first
    return f"{first}+{hashlib.blake2s(b'|'.join(ids), digest_size=8).hexdigest()}"


def _header(response: httpcore.Response, name: bytes) -> str:
    found = [value for key, value in response.headers if key.lower() == name]
    return found[0].decode("latin-1") if found else ""


def _read(response: httpcore.Response, timeout_s: float) -> bytes:
    """The beginning of the body. The rest of a long or slow one is not read, which costs its
    connection; so does one that breaks off, and the status counts."""
    found, end_s = b"", time.monotonic() + timeout_s
    try:
        for piece in response.iter_stream():
            found += piece
            if len(found) > _BODY_BYTES or time.monotonic() > end_s:
                break
    except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError):
        pass
    return found


def _lost(code: str, reason: str) -> Outcome:
    return Outcome(verdict=Verdict.RETRY, code=code, reason=reason)


def probe(settings: HttpSink, *, name: str) -> None:
    """Fail unless something accepts connections at the address, and its certificate is valid.

    A request is sent with the method OPTIONS, which changes nothing. Any answer will do.
    """
    url = settings.url.get_secret_value()
    connections = Connections(settings)
    try:
        with connections.stream("OPTIONS", httpcore.URL(url), [], b""):
            pass
    except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError) as error:
        host = urlsplit(url).hostname
        raise SinkUnreachableError(f"pipeline {name}: {host} does not answer: {error}") from error
    finally:
        connections.close()
