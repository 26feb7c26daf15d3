"""A small mail server for tests: SMTP with STARTTLS or TLS, and AUTH PLAIN."""

from __future__ import annotations

import base64
import contextlib
import socketserver
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import socket
    import ssl


@dataclass
class Mail:
    """What a client has sent."""

    sender: str = ""
    recipients: list[str] = field(default_factory=list)
    content: str = ""
    user: str = ""
    encrypted: bool = False


class MailServer:
    """Listens on a port of its own, in a `with` block. `refused` recipients get 550, and QUIT is
    answered with `farewell`."""

    def __init__(
        self,
        *,
        context: ssl.SSLContext | None = None,
        implicit: bool = False,
        login: tuple[str, str] | None = None,
        refused: tuple[str, ...] = (),
        farewell: str = "221 bye",
    ) -> None:
        self.farewell = farewell
        self.context, self.implicit, self.login, self.refused = context, implicit, login, refused
        self.mails: list[Mail] = []
        self.said: list[str] = []
        """The first words of all commands, with what they had in clear text."""
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(server: MailServer) -> type[socketserver.BaseRequestHandler]:
    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError), contextlib.closing(_Session(server)) as session:
                session.run(self.request)

    return Handler


class _Session:
    def __init__(self, server: MailServer) -> None:
        self._server = server
        self._mail = Mail()
        self._user = ""
        self._encrypted = False

    def run(self, connection: socket.socket) -> None:
        self._socket = connection
        if self._server.implicit:
            self._encrypt()
        self._file = self._socket.makefile("rb")
        self._say("220 test")
        while line := self._file.readline().decode().strip():
            word, _, rest = line.partition(" ")
            if not self._encrypted:
                self._server.said.append(line)
            if not self._answer(word.upper(), rest):
                return

    def close(self) -> None:
        self._socket.close()
        if hasattr(self, "_file"):
            self._file.close()

    def _encrypt(self) -> None:
        assert self._server.context is not None
        self._socket = self._server.context.wrap_socket(self._socket, server_side=True)
        self._encrypted = True

    def _say(self, text: str) -> None:
        self._socket.sendall(f"{text}\r\n".encode())

    def _answer(self, word: str, rest: str) -> bool:
        match word:
            case "EHLO" | "HELO":
                offers = ["AUTH PLAIN"] if self._server.login else []
                if self._server.context and not self._encrypted:
                    offers.append("STARTTLS")
                for each in ["test", *offers][:-1]:
                    self._say(f"250-{each}")
                self._say(f"250 {['test', *offers][-1]}")
            case "STARTTLS":
                self._say("220 go")
                self._file.close()
                self._encrypt()
                self._file = self._socket.makefile("rb")
            case "AUTH":
                _, user, password = base64.b64decode(rest.split()[1]).decode().split("\0")
                accepted = (user, password) == self._server.login
                self._user = user
                self._say("235 ok" if accepted else f"535 no: {password}")
            case "MAIL":
                self._mail = Mail(sender=rest, user=self._user, encrypted=self._encrypted)
                self._say("250 ok")
            case "RCPT":
                refused = any(each in rest for each in self._server.refused)
                self._mail.recipients.append(rest)
                self._say("550 no" if refused else "250 ok")
            case "DATA":
                self._say("354 go")
                lines = []
                while (line := self._file.readline().decode()) != ".\r\n":
                    lines.append(line)
                self._mail.content = "".join(lines)
                self._server.mails.append(self._mail)
                self._say("250 ok")
            case "QUIT":
                self._say(self._server.farewell)
                return False
            case _:
                self._say("250 ok")
        return True
