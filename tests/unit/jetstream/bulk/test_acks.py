from __future__ import annotations

import itertools
import json
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import (
    PoisonedError,
    SinkError,
    SinkFullError,
    SinkRefusedError,
    SinkUnreachableError,
)
from tailrace.jetstream.bulk.acks import Acks, Failure
from tailrace.jetstream.protocol import Message, parse

INBOX = b"_INBOX.abc."


@dataclass(frozen=True, slots=True)
class Answer:
    kind: str
    data: bytes


def message(subject: bytes, payload: bytes) -> bytes:
    return b"MSG %s 1 %d\r\n%s\r\n" % (subject, len(payload), payload)


def answer(number: int, kind: str) -> Answer:
    """What a server sends about the message of a number."""
    subject = INBOX + b"%d" % number
    body = b'{"stream":"CDC","seq":%d' % (number + 1000)
    match kind:
        case "plain":
            data = message(subject, body + b"}")
        case "duplicate":
            data = message(subject, body + b',"duplicate": true}')
        case "domain":
            data = message(subject, b'{"stream":"CDC","domain":"hub","seq":%d}' % (number + 1000))
        case "full":
            error = {"code": 503, "err_code": 10077, "description": "maximum bytes exceeded"}
            data = message(subject, json.dumps({"error": error, "stream": "CDC"}).encode())
        case "elsewhere":
            data = message(subject, b'{"stream":"OTHER","seq":1}')
        case "no_responders":
            header = b"NATS/1.0 503\r\nNats-Subject: cdc.x\r\n\r\n"
            sizes = (subject, len(header), len(header), header)
            data = b"HMSG %s 1 %d %d\r\n%s\r\n" % sizes
        case "ping":
            data = b"PING\r\n"
        case _:
            data = message(b"_INBOX.abc.r1", b'{"type":"info","state":{"last_seq":7}}')
    return Answer(kind, data)


def fed(data: bytes, cuts: list[int]) -> Acks:
    """All of it, in pieces, as the publisher feeds it."""
    acks = Acks(INBOX, "CDC")
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    rest = b""
    for start, end in itertools.pairwise(edges):
        rest += data[start:end]
        rest = rest[acks.count(rest) :]
        events, used = parse(rest)
        rest = rest[used:]
        for event in events:
            if isinstance(event, Message):
                acks.take(event)
    assert rest == b""
    return acks


mostly_plain = st.sampled_from(
    ["plain"] * 12
    + ["duplicate", "full", "elsewhere", "no_responders", "ping", "request", "domain"]
)


@given(st.lists(mostly_plain, max_size=40), st.lists(st.integers(0, 10**6), max_size=12))
def test_any_split_of_the_bytes_counts_the_same(kinds: list[str], cuts: list[int]) -> None:
    answers = [answer(number, kind) for number, kind in enumerate(kinds)]
    acks = fed(b"".join(one.data for one in answers), cuts)
    numbers: dict[str, list[int]] = {}
    for number, kind in enumerate(kinds):
        numbers.setdefault(kind, []).append(number)
    assert acks.answered == len(kinds) - sum(kinds.count(kind) for kind in ("ping", "request"))
    answered = [n for n, kind in enumerate(kinds) if kind not in ("ping", "request")]
    assert acks.highest == max(answered, default=-1) + 1
    assert acks.duplicates == kinds.count("duplicate")
    refused = [
        number
        for kind in ("full", "elsewhere", "no_responders")
        for number in numbers.get(kind, [])
    ]
    assert [failure.number for failure in acks.failures] == sorted(refused)
    assert acks.repeated == [(number, number + 1000) for number in numbers.get("duplicate", [])]


def test_runs_of_plain_acks_are_counted_without_parsing() -> None:
    acks = Acks(INBOX, "CDC")
    first = answer(0, "plain").data
    assert acks.count(first) == 0
    acks.take(parse(first)[0][0])  # type: ignore[arg-type]
    run = b"".join(answer(number, "plain").data for number in range(1, 100))
    assert acks.count(run + b"MSG _INB") == len(run)
    assert acks.answered == acks.highest == 100
    assert acks.gap == 0
    late = answer(103, "plain").data
    assert acks.count(late) == len(late)
    assert acks.gap == 3


def test_the_answer_of_an_atomic_batch_covers_its_messages() -> None:
    done = b'{"stream":"CDC","seq":30,"batch":"b","count":20}'
    wrong = b'{"error":{"code":400,"err_code":10201,"description":"duplicate"},"stream":"CDC"}'
    acks = fed(message(INBOX + b"0-20", done) + message(INBOX + b"20-5", wrong), [])
    assert acks.answered == 25
    assert [(one.number, one.count) for one in acks.failures] == [(20, 5)]


@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b"\xff"])
def test_an_invalid_answer_is_a_failure(payload: bytes) -> None:
    (failure,) = fed(message(INBOX + b"7", payload), []).failures
    assert failure.number == 7
    assert type(failure.error("message 1a-0", "CDC")) is SinkRefusedError


@pytest.mark.parametrize(
    ("code", "err_code", "description", "kind"),
    [
        (503, 10077, "maximum messages exceeded", SinkFullError),
        (503, 10077, "maximum bytes exceeded", SinkFullError),
        (503, 10077, "maximum messages per subject exceeded", SinkFullError),
        (503, 10077, "no space left on device", SinkUnreachableError),
        (500, 10047, "insufficient storage resources available", SinkFullError),
        (503, 10008, "JetStream system temporarily unavailable", SinkUnreachableError),
        (400, 10054, "message size exceeds maximum allowed", PoisonedError),
        (400, 10201, "batch contains duplicate message id", SinkUnreachableError),
        (409, 10158, "duplicate message id is in process", SinkUnreachableError),
        (400, 10176, "atomic publish batch is incomplete", SinkUnreachableError),
        (503, 10023, "insufficient resources", SinkFullError),
        (500, 10118, "stream is offline", SinkUnreachableError),
        (400, 10109, "invalid operation on sealed stream", SinkRefusedError),
        (503, 0, "no stream has the subject cdc.x", SinkRefusedError),
    ],
)
def test_refusals_map_to_errors(
    code: int, err_code: int, description: str, kind: type[SinkError]
) -> None:
    failure = Failure(number=3, count=1, code=code, err_code=err_code, description=description)
    error = failure.error("message 1a-0", "CDC")
    assert type(error) is kind
    assert "1a-0" in str(error)
    assert description in str(error)
