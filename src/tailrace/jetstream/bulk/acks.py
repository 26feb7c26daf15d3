"""What the server answers to published messages: counted, and read one by one only when need be.

A plain positive ack is `MSG <inbox><number> 1 <n>␍␊{"stream":"CDC","seq":123}␍␊`. A run of them is
told by counting: so many times the payload's beginning, no comma beyond, twice as many lines. Each
payload stands behind a line of its own, so when the numbers agree there is nothing else in there.
Whatever does not agree (a duplicate, an error, a ping in between) goes through the parser.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tailrace.errors import (
    PoisonedError,
    SinkError,
    SinkFullError,
    SinkRefusedError,
    SinkUnreachableError,
)
from tailrace.jetstream.protocol import header_value

if TYPE_CHECKING:
    from tailrace.jetstream.protocol import Message

_PLAIN = re.compile(rb'(\{"stream":[^}]*"seq":)[0-9]+\}')
_NUMBER = re.compile(rb"([0-9]+)(?:-([0-9]+))?")
_END = b"}\r\n"

_NO_RESPONDERS = 503
_STORE_FAILED = 10077
_TOO_LARGE = 10054
_BATCH_DUPLICATE = 10201
_RESOURCES = frozenset({10023, 10028, 10047})
"""Insufficient resources; memory, storage exceeded."""
_LIMITS = ("maximum messages", "maximum bytes", "maximum message")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A message, or the messages of an atomic batch, that were not stored, and why."""

    number: int
    count: int
    code: int
    err_code: int
    description: str

    @property
    def unacked(self) -> bool:
        """Whether nobody listens to the subject: no such stream, or one without a leader."""
        return self.code == _NO_RESPONDERS and not self.err_code

    def error(self, what: str, stream: str) -> SinkError:
        """The error for it; `what` names the message."""
        text = f"stream {stream} refused {what}: {self.description}"
        full = self.err_code == _STORE_FAILED and self.description.startswith(_LIMITS)
        if full or self.err_code in _RESOURCES:
            return SinkFullError(text)
        if self.err_code == _TOO_LARGE:
            return PoisonedError(text)
        if self.err_code == _BATCH_DUPLICATE:
            # What we read back did not have it: it arrived since. The next attempt will see it.
            return SinkUnreachableError(
                text, hint="If it stays so, another pipeline writes the same ids to this stream."
            )
        if self.code == _NO_RESPONDERS and self.err_code:
            return SinkUnreachableError(text)
        return SinkRefusedError(text)


class Acks:
    """The answers on one connection. Numbers count from 0."""

    def __init__(self, inbox: bytes, stream: str) -> None:
        self.settled = 0
        """Answers of any kind."""
        self.highest = 0
        """One past the highest number that was answered."""
        self.duplicates = 0
        self.failures: list[Failure] = []
        self.repeated: tuple[int, int] | None = None
        """The first message that was there before: its number, and the sequence it has."""
        self._head = b"MSG " + inbox
        self._inbox = inbox
        self._stream = stream
        # How a payload begins is taken from the first one: it holds the stream and the domain.
        self._lead = b""
        self._commas = 0

    @property
    def gap(self) -> int:
        """How many messages are not answered though a later one is."""
        return self.highest - self.settled

    def count(self, data: bytes) -> int:
        """Count the plain acks `data` begins with; how many bytes they take, 0 if not only such."""
        end = data.rfind(_END) + len(_END)
        if not self._lead or end < len(_END) or not data.startswith(self._head):
            return 0
        number = data.count(self._lead, 0, end)
        if data.count(b",", 0, end) != number * self._commas:
            return 0
        if data.count(b"\n", 0, end) != 2 * number:
            return 0
        self.settled += number
        start = data.rindex(self._head, 0, end) + len(self._head)
        self.highest = max(self.highest, int(data[start : data.index(b" ", start)]) + 1)
        return end

    def take(self, message: Message) -> None:
        """Read one answer; messages that answer something else are passed over."""
        match = _NUMBER.fullmatch(message.subject.removeprefix(self._inbox))
        if match is None:
            return
        number, count = int(match[1]), int(match[2] or 1)
        self.settled += count
        self.highest = max(self.highest, number + count)
        plain = _PLAIN.fullmatch(message.payload)
        if plain and plain[1] == self._lead:
            return
        if message.status:
            subject = header_value(message.header, b"Nats-Subject") or b""
            reason = f"no stream takes the subject {subject.decode('utf-8', 'replace')}"
            self._fail(number, count, {"code": message.status, "description": reason})
        else:
            self._read(number, count, _loaded(message.payload))
            if plain and not self.failures:
                self._lead, self._commas = plain[1], plain[1].count(b",")

    def _read(self, number: int, count: int, answer: dict[str, Any]) -> None:
        if error := answer.get("error"):
            self._fail(number, count, error)
        elif answer.get("stream") != self._stream:
            reason = f"its subject belongs to stream {answer.get('stream')}, which has stored it"
            self._fail(number, count, {"description": reason})
        elif answer.get("duplicate"):
            self.duplicates += 1
            self.repeated = self.repeated or (number, int(answer["seq"]))

    def _fail(self, number: int, count: int, error: dict[str, Any]) -> None:
        failure = Failure(
            number=number,
            count=count,
            code=int(error.get("code", 0)),
            err_code=int(error.get("err_code", 0)),
            description=str(error.get("description", "no reason given")),
        )
        self.failures.append(failure)


def _loaded(payload: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(payload)
    except ValueError:
        answer = None
    unreadable = {"error": {"description": f"the answer {payload[:100]!r} cannot be read"}}
    return answer if isinstance(answer, dict) else unreadable
