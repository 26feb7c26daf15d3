"""The server's side of the NATS client protocol: bytes to messages, no I/O.

Only what a publisher receives: INFO, MSG, HMSG, PING, PONG, +OK and -ERR. `parse` accepts any
prefix of the byte stream and returns how many bytes it used; the caller keeps the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.errors import MalformedError

_CRLF = b"\r\n"
_LINE_BYTES = 1 << 20
"""Longer than any control line; INFO grows with the addresses of a cluster."""
_PAYLOAD_BYTES = 128 << 20
"""Twice the largest max_payload of a server: JetStream answers in base64."""
_CONTROLS = (b"PING", b"PONG", b"INFO", b"+OK", b"-ERR")
_MSG_WORDS = {b"MSG": (4, 5), b"HMSG": (5, 6)}
_STATUS = b"NATS/1.0 "


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """MSG or HMSG."""

    subject: bytes
    reply: bytes = b""
    header: bytes = b""
    """The header block, including its first line."""
    payload: bytes = b""

    @property
    def status(self) -> int:
        """The status of a header such as `NATS/1.0 503`; 0 if there is no status."""
        word = self.header.removeprefix(_STATUS)[:3]
        return int(word) if self.header.startswith(_STATUS) and word.isdigit() else 0


@dataclass(frozen=True, slots=True)
class Control:
    """Every other line: the verb and its argument."""

    verb: bytes
    argument: bytes = b""


Event = Message | Control


def parse(data: bytes) -> tuple[list[Event], int]:
    r"""The complete events at the start of `data`, and how many bytes they occupy.

    >>> parse(b"PING\r\n-ERR 'no'\r\nPO")
    ([Control(verb=b'PING', argument=b''), Control(verb=b'-ERR', argument=b"'no'")], 17)
    """
    events: list[Event] = []
    start = 0
    while (end := data.find(_CRLF, start)) >= 0:
        verb, _, argument = data[start:end].partition(b" ")
        if verb.upper() in _MSG_WORDS:
            message, following = _message(data, verb.upper(), argument, end + 2)
            if message is None:
                break
            events.append(message)
            start = following
        elif verb.upper() in _CONTROLS:
            events.append(Control(verb.upper(), argument.strip()))
            start = end + 2
        else:
            raise MalformedError(f"the server sent {data[start : start + 40]!r}")
    else:
        if len(data) - start > _LINE_BYTES:
            raise MalformedError(f"a control line of more than {_LINE_BYTES} bytes")
    return events, start


def _message(data: bytes, verb: bytes, argument: bytes, body: int) -> tuple[Message | None, int]:
    words = argument.split()
    if len(words) + 1 not in _MSG_WORDS[verb]:
        raise MalformedError(f"{verb.decode()} with {len(words)} words")
    numbers = words[-2:] if verb == b"HMSG" else words[-1:]
    if not b"".join(numbers).isdigit() or len(numbers[-1]) > 9:
        raise MalformedError(f"{verb.decode()} with an invalid length")
    total = int(numbers[-1])
    header = int(numbers[0]) if verb == b"HMSG" else 0
    if total > _PAYLOAD_BYTES or header > total:
        raise MalformedError(f"{verb.decode()} with lengths {header} and {total}")
    if len(data) < body + total + 2:
        return None, 0
    if data[body + total : body + total + 2] != _CRLF:
        raise MalformedError(f"{verb.decode()} of {total} bytes does not end with a line break")
    reply = words[2] if len(words) == _MSG_WORDS[verb][1] - 1 else b""
    message = Message(
        subject=words[0],
        reply=reply,
        header=data[body : body + header],
        payload=data[body + header : body + total],
    )
    return message, body + total + 2


def header_value(header: bytes, name: bytes) -> bytes | None:
    r"""The first value of a header field. Names are case-sensitive, as in the server.

    >>> header_value(b"NATS/1.0\r\nNats-Msg-Id: 1a-0\r\n\r\n", b"Nats-Msg-Id")
    b'1a-0'
    """
    at = header.find(_CRLF + name + b":")
    if at < 0:
        return None
    start = at + len(name) + 3
    return header[start : header.find(_CRLF, start)].strip()
