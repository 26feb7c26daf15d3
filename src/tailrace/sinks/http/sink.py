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
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import httpcore
import numpy as np
import pyarrow.compute as pc

from tailrace import __version__
from tailrace.errors import PoisonedError, SinkRefusedError, SinkUnreachableError
from tailrace.sinks.http.answers import outcomes_of
from tailrace.sinks.http.connections import Connections
from tailrace.sinks.http.destination import is_path
from tailrace.sinks.http.signature import Signer
from tailrace.sinks.outcome import Outcome, Verdict
from tailrace.sinks.requests.acknowledged import Acknowledged
from tailrace.sinks.requests.engine import Requests

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from tailrace.position import Position
    from tailrace.sinks.contract import Lane, Receipt
    from tailrace.sinks.http.settings import HttpSink

_BODY_BYTES = 1 << 20
"""An answer may have a result for each of some thousand messages."""


class Http:
    """Sends messages to one receiver. `name` is the pipeline's."""

    def __init__(
        self, settings: HttpSink, lane: Lane, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._settings = settings
        self._lane = lane
        self._name = lane.pipeline
        self._clock = clock
        self._url = urlsplit(settings.url.get_secret_value())
        secret = settings.secret.get_secret_value()
        self._signer = Signer(secret) if secret else None
        self._headers = [
            ("host", self._url.netloc),
            ("user-agent", f"tailrace/{__version__}"),
            ("content-type", settings.content_type),
            *((key, value.get_secret_value()) for key, value in settings.headers.items()),
        ]
        if settings.compression == "gzip":
            self._headers.append(("content-encoding", "gzip"))
        self._acknowledged = Acknowledged(lane.folder, history=lane.history, lane=lane.number)
        self._skipped = 0
        """Messages that an earlier attempt has delivered, since the last receipt."""
        self._connections: Connections | None = None
        self._requests: Requests | None = None

    def open(self, after: Position) -> None:
        """Forget what was not flushed. Connections are made when they are needed, and kept."""
        kept = self._requests is not None and self._requests.idle
        if not kept:
            self.close()
        # After `close`, which closes its file.
        self._acknowledged.open(after)
        self._skipped = 0
        if kept:
            return
        self._connections = Connections(self._settings)
        self._requests = Requests(
            partial(self._send, self._connections),
            self._settings.limits,
            self._lane.retry,
            acknowledged=self._acknowledged,
            ordered=self._lane.ordered,
            blocks=self._lane.blocks,
        )

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
        # The receiver may have a message that would be refused today.
        known = self._acknowledged.known(batch) if errors else None
        return {
            row: Outcome.refused(error)
            for row, error in errors.items()
            if known is None or not known[row]
        }

    def write(self, batch: pa.RecordBatch) -> None:
        """Send messages."""
        requests = self._require_open()
        try:
            missing = self._acknowledged.missing(batch)
            self._skipped += batch.num_rows - missing.num_rows
            requests.take(missing)
        except BaseException:
            self.close()
            raise

    def flush(self, *, end: bool = True) -> Receipt:
        """Wait for every answer, without `end` only for those that come soon."""
        requests = self._require_open()
        try:
            receipt = requests.flush(end=end)
        except BaseException:
            self.close()
            raise

        skipped, self._skipped = self._skipped, 0
        return replace(receipt, duplicates=skipped)

    def close(self) -> None:
        """Close all connections. Messages without an answer may have arrived."""
        requests, self._requests = self._requests, None
        connections, self._connections = self._connections, None
        self._acknowledged.close()
        if requests is not None:
            requests.close()
        if connections is not None:
            connections.close()

    def _require_open(self) -> Requests:
        if self._requests is None:
            raise SinkUnreachableError(f"the sink of pipeline {self._name} is not open")
        return self._requests

    def _send(self, connections: Connections, rows: pa.RecordBatch) -> Mapping[int, Outcome]:
        """One request. Called by several threads."""
        payloads = rows.column("payload").to_pylist()
        body = payloads[0] if self._settings.body == "message" else array_of(payloads)
        name = request_id(rows.column("id").to_pylist())
        url = self._url_of(rows.column("destination")[0].as_py())
        return self._post(connections, url, name, body, count=rows.num_rows)

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
        self, connections: Connections, url: httpcore.URL, name: str, body: bytes, *, count: int
    ) -> Mapping[int, Outcome]:
        """Send a request of `count` messages. Returns those that were not accepted, and why."""
        moment_s = int(self._clock())
        headers = [*self._headers, ("webhook-id", name), ("webhook-timestamp", str(moment_s))]
        if self._signer is not None:
            headers.append(("webhook-signature", self._signer.sign(name, moment_s, body)))
        if self._settings.compression == "gzip":
            body = gzip.compress(body, compresslevel=1)
        timeout_s = self._settings.timeout_s
        try:
            with connections.stream(self._settings.method, url, headers, body) as response:
                return outcomes_of(
                    response.status,
                    count=count,
                    retry_after=_header(response, b"retry-after"),
                    body=_read(response, timeout_s),
                )
        except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
            host = url.host.decode()
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
