"""Acknowledgements of published messages: counted, and parsed one by one only where necessary.

A positive acknowledgement is `MSG <inbox><number> 1 <n>␍␊{"stream":"CDC","seq":123}␍␊`. A run of
them is recognised by counting: n times the prefix of the payload, no other comma, 2n lines. Each
payload follows a line of its own, so if the counts agree the bytes hold nothing else. Everything
that does not agree (a duplicate, an error, a ping in between) goes through the parser.
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
from tailrace.jetstream.failures import error_of
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
_LIMITS = ("maximum messages", "maximum bytes", "maximum message")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A message, or the messages of an atomic batch, that the stream did not store, and why."""

    number: int
    count: int
    code: int
    err_code: int
    description: str

    @property
    def no_responders(self) -> bool:
        """Whether no stream has the subject: there is none, or it has no leader."""
        return self.code == _NO_RESPONDERS and not self.err_code

    def error(self, message: str, stream: str) -> SinkError:
        """The error for a message; `message` names it."""
        text = f"stream {stream} refused {message}: {self.description}"
        full = self.err_code == _STORE_FAILED and self.description.startswith(_LIMITS)
        if full:
            return SinkFullError(text)
        if self.err_code == _TOO_LARGE:
            return PoisonedError(text)
        if self.err_code == _BATCH_DUPLICATE:
            # Another attempt stored it after this one had read the stream back. A retry finds it.
            return SinkUnreachableError(
                text,
                hint="If it happens again, another pipeline writes the same ids to this stream.",
            )
        if self.no_responders:
            return SinkRefusedError(text)
        return error_of(text, code=self.code, err_code=self.err_code)


class Acks:
    """The acknowledgements on one connection. Messages are numbered from 0."""

    def __init__(self, inbox: bytes, stream: str) -> None:
        self.answered = 0
        """Messages that have an answer of any kind."""
        self.highest = 0
        """One past the highest number that has an answer."""
        self.duplicates = 0
        self.failures: list[Failure] = []
        self.repeated: list[tuple[int, int]] = []
        """The messages that the stream already held: their numbers, and their sequences there."""
        self._line_prefix = b"MSG " + inbox
        self._inbox = inbox
        self._stream = stream
        # Taken from the first payload: it names the stream and the domain.
        self._payload_prefix = b""
        self._commas = 0

    @property
    def gap(self) -> int:
        """How many messages have no answer although a later one has."""
        return self.highest - self.answered

    def count(self, data: bytes) -> int:
        """Count the plain acknowledgements at the start of `data`; how many bytes they occupy.

        0 if there is anything else among them: then the caller parses.
        """
        end = data.rfind(_END) + len(_END)
        if not self._payload_prefix or end < len(_END) or not data.startswith(self._line_prefix):
            return 0
        count = data.count(self._payload_prefix, 0, end)
        if data.count(b",", 0, end) != count * self._commas:
            return 0
        if data.count(b"\n", 0, end) != 2 * count:
            return 0
        self.answered += count
        start = data.rindex(self._line_prefix, 0, end) + len(self._line_prefix)
        self.highest = max(self.highest, int(data[start : data.index(b" ", start)]) + 1)
        return end

    def take(self, message: Message) -> None:
        """Read one answer. Messages on other subjects are ignored."""
        match = _NUMBER.fullmatch(message.subject.removeprefix(self._inbox))
        if match is None:
            return
        number, count = int(match[1]), int(match[2] or 1)
        self.answered += count
        self.highest = max(self.highest, number + count)
        plain = _PLAIN.fullmatch(message.payload)
        if plain and plain[1] == self._payload_prefix:
            return
        if message.status:
            subject = header_value(message.header, b"Nats-Subject") or b""
            reason = f"no stream has the subject {subject.decode('utf-8', 'replace')}"
            self._fail(number, count, {"code": message.status, "description": reason})
        else:
            self._read(number, count, _parse(message.payload))
            if plain and not self.failures:
                self._payload_prefix, self._commas = plain[1], plain[1].count(b",")

    def _read(self, number: int, count: int, answer: dict[str, Any]) -> None:
        if error := answer.get("error"):
            self._fail(number, count, error)
        elif answer.get("stream") != self._stream:
            reason = f"its subject belongs to the stream {answer.get('stream')}, which stored it"
            self._fail(number, count, {"description": reason})
        elif answer.get("duplicate"):
            self.duplicates += 1
            self.repeated.append((number, int(answer["seq"])))

    def _fail(self, number: int, count: int, error: dict[str, Any]) -> None:
        failure = Failure(
            number=number,
            count=count,
            code=int(error.get("code", 0)),
            err_code=int(error.get("err_code", 0)),
            description=str(error.get("description", "no reason given")),
        )
        self.failures.append(failure)


def _parse(payload: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(payload)
    except ValueError:
        answer = None
    unreadable = {"error": {"description": f"invalid answer {payload[:100]!r}"}}
    return answer if isinstance(answer, dict) else unreadable
