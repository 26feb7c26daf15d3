"""`HttpReceiver`: an HTTP server that keeps what it receives and answers as told."""

from __future__ import annotations

import contextlib
import gzip
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A request as it was received."""

    method: str
    path: str
    headers: Mapping[str, str]
    """By names in lower case."""
    body: bytes
    """After decompression."""

    @property
    def id(self) -> str:
        """The header `webhook-id`."""
        return self.headers.get("webhook-id", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """An answer. A status of 0 closes the connection without one."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class HttpReceiver:
    """Listens on a port of its own, or on a given one. In a `with` block.

    `answer` is called for every request, by several threads; the request is kept before. Without
    it, the answer is 200. Probes (OPTIONS) are neither kept nor passed to it. With a `context` it
    speaks TLS.
    """

    def __init__(
        self,
        answer: Callable[[HttpRequest], HttpResponse] | None = None,
        *,
        port: int = 0,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.answer = answer or (lambda _: HttpResponse())
        self._lock = threading.Lock()
        self._requests: list[HttpRequest] = []
        self._server = _Server(("127.0.0.1", port), _handler(self))
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._scheme = "http" if context is None else "https"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """The URL of its root, without a `/` at the end."""
        return f"{self._scheme}://localhost:{self.port}"

    @property
    def requests(self) -> list[HttpRequest]:
        """What was received, in the order of arrival."""
        with self._lock:
            return list(self._requests)

    def keep(self, request: HttpRequest) -> None:
        """Keep a request."""
        with self._lock:
            self._requests.append(request)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients may disconnect at any time."""
        del request, client_address


def _handler(receiver: HttpReceiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1
        disable_nagle_algorithm = True

        def _receive(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            if self.command != "GET" and "content-length" not in headers:
                # The client has disconnected in the middle of the headers.
                self.close_connection = True
                return
            size = int(headers.get("content-length", 0))
            body = self.rfile.read(size)
            if len(body) < size:
                return
            if headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            request = HttpRequest(method=self.command, path=self.path, headers=headers, body=body)
            receiver.keep(request)
            self._respond(receiver.answer(request))

        def _respond(self, response: HttpResponse) -> None:
            if response.status == 0:
                self.close_connection = True
                return
            with contextlib.suppress(OSError):
                self.send_response(response.status)
                for name, value in response.headers.items():
                    self.send_header(name, value)
                if "content-length" not in response.headers:
                    self.send_header("content-length", str(len(response.body)))
                self.end_headers()
                self.wfile.write(response.body)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _receive  # noqa: N815 - names of the base class

        def do_OPTIONS(self) -> None:
            """A probe."""
            self._respond(HttpResponse(status=204))

        def log_message(self, *args: object) -> None:
            """Print nothing."""

    return Handler
