"""Requests that are accepted in part, or not at all, by servers that fail as AWS does."""

from __future__ import annotations

import base64
import random
from collections import Counter, defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.errors import SinkRefusedError, SinkUnreachableError
from tailrace.position import ORIGIN
from tailrace.sinks.contract import Lane
from tailrace.sinks.outcome import Verdict
from tailrace.sinks.registry import SINKS
from tailrace.sinks.requests.sink import RequestSink
from tailrace.sinks.retry import Retry
from tests.integration.aws.faulty import FaultyAws, error
from tests.unit.sinks.rows import message_id, payload, rows, with_column, write

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from tailrace.sinks.contract import Receipt, Sink
    from tests.fix_aws import Aws

SOON = Retry(attempts=8, first_s=0.01, max_s=0.05)
ONCE = Retry(attempts=1)
KINDS = ("sqs", "kinesis", "eventbridge")
SLOW = {"ErrorCode": "ProvisionedThroughputExceededException", "ErrorMessage": "slow down"}


@pytest.fixture
def faulty(aws: Aws) -> Iterator[FaultyAws]:
    with FaultyAws(aws.url) as made:
        yield made


class Destination:
    """A new queue, stream or bus, and sinks for it that go through a server that fails."""

    def __init__(self, kind: str, aws: Aws, faulty: FaultyAws, *, fifo: bool = False) -> None:
        self.kind = kind
        self._aws = aws
        self._faulty = faulty
        self.name = aws.unused(kind) + (".fifo" if fifo else "")
        aws.create(kind, self.name)
        self.destination = f"{self.name} an insert" if kind == "eventbridge" else self.name

    @contextmanager
    def opened(self, retry: Retry = SOON, *, ordered: bool = True, **keys: Any) -> Iterator[Sink]:
        template = {"sqs": "queue", "kinesis": "stream", "eventbridge": "bus"}[self.kind]
        kind = SINKS.find(self.kind)
        given = {**self._aws.keys, "endpoint_url": self._faulty.url, template: self.name, **keys}
        settings = kind.settings.model_validate({"type": self.kind, **given})
        sink = kind.open(settings, Lane(pipeline="test", retry=retry, ordered=ordered))
        sink.open(ORIGIN)
        try:
            yield sink
        finally:
            sink.close()

    def batch(self, keys: str) -> pa.RecordBatch:
        """A message for each key, which is a letter."""
        made = rows(range(len(keys)), destination=self.destination.encode())
        return with_column(made, "key", [letter.encode() for letter in keys])

    def delivered(self) -> list[bytes]:
        """The payloads, in order."""
        if self.kind == "kinesis":
            return [each["Data"] for each in self._aws.records(self.name)]
        return [payload_of(self.kind, each) for each in self._aws.received(self.name)]


def payload_of(kind: str, message: dict[str, Any]) -> bytes:
    if kind == "sqs":
        return base64.b64decode(message["Body"])
    return base64.b64decode(message["Body"].partition('"payload": "')[2].partition('"')[0])


def number_of(kind: str, entry: dict[str, Any]) -> int:
    """The number of the message of an entry in a request."""
    match kind:
        case "sqs":
            text = base64.b64decode(entry["MessageBody"])
        case "kinesis":
            text = base64.b64decode(entry["Data"])
        case _:
            text = base64.b64decode(entry["Detail"].partition('"payload":"')[2][:-2])
    return int(text.partition(b"\r")[0])


def fault(kind: str, code: str, *, sender: bool) -> dict[str, Any]:
    if kind == "sqs":
        return {"Code": code, "SenderFault": sender, "Message": "no"}
    return {"ErrorCode": code, "ErrorMessage": "no"}


def send(sink: Sink, batch: pa.RecordBatch) -> None:
    """Send messages and wait for the answers."""
    write(sink, batch)
    sink.flush()


def numbers(receipt: Receipt) -> list[int]:
    ids = [message["id"][0].as_py() for message, _ in receipt.failures]
    return [next(n for n in range(1000) if message_id(n) == name) for name in ids]


@pytest.mark.parametrize("kind", ["sqs", "eventbridge"])
def test_a_refused_entry_is_a_failure_and_holds_back_its_key(
    kind: str, aws: Aws, faulty: FaultyAws
) -> None:
    to = Destination(kind, aws, faulty)
    code = {"sqs": "InvalidMessageContents", "eventbridge": "MalformedDetail"}[kind]
    faulty.judge = lambda entry: (
        fault(kind, code, sender=True) if number_of(kind, entry) == 1 else None
    )
    with to.opened() as sink:
        write(sink, to.batch("abcbac"))
        receipt = sink.flush()
    assert receipt.messages == 4
    assert numbers(receipt) == [1, 3]
    refused, unsent = (outcome for _, outcome in receipt.failures)
    assert (refused.verdict, refused.code, refused.response) == (Verdict.REFUSED, code, "no")
    assert unsent.verdict is Verdict.UNSENT
    assert sorted(to.delivered()) == [payload(number) for number in (0, 2, 4, 5)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_entry_is_sent_again_and_no_key_overtakes(
    kind: str, aws: Aws, faulty: FaultyAws, seed: int
) -> None:
    """GIVEN a service that fails a third of all entries WHEN keys are in a batch many times THEN
    every message arrives once, and those of a key in their order."""
    rng = random.Random(seed)
    to = Destination(kind, aws, faulty)
    codes = {"sqs": "InternalError", "kinesis": "InternalFailure", "eventbridge": "InternalFailure"}
    failing = fault(kind, codes[kind], sender=False)
    faulty.judge = lambda _: failing if rng.random() < 0.3 else None
    keys = "".join(rng.choice("abcdefghij") for _ in range(60))
    with to.opened(Retry(attempts=50, first_s=0.001, max_s=0.01)) as sink:
        write(sink, to.batch(keys))
        assert sink.flush().messages == 60
    order = defaultdict(list)
    for each in to.delivered():
        number = int(each.partition(b"\r")[0])
        order[keys[number]].append(number)
    assert order == {key: [at for at, each in enumerate(keys) if each == key] for key in set(keys)}
    for entries in faulty.batches:
        found = Counter(keys[number_of(kind, each)] for each in entries)
        assert set(found.values()) == {1}


@pytest.mark.parametrize("kind", KINDS)
def test_a_service_that_is_too_busy_is_not_asked_for_a_while(
    kind: str, aws: Aws, faulty: FaultyAws
) -> None:
    """Throttling counts no attempts, whether it is of a request or of an entry."""
    to = Destination(kind, aws, faulty)
    code = {"sqs": "RequestThrottled", "eventbridge": "ThrottlingException"}.get(
        kind, "ProvisionedThroughputExceededException"
    )
    requests, entries = iter(range(2)), iter(range(2))
    faulty.refuse = lambda operation: (
        error(code, retry_after="1")
        if operation.startswith(("Send", "Put")) and next(requests, None) is not None
        else None
    )
    faulty.judge = lambda _: (
        fault(kind, code, sender=True) if next(entries, None) is not None else None
    )
    with to.opened(ONCE) as sink:
        write(sink, to.batch("ab"))
        assert sink.flush().messages == 2
    assert sorted(to.delivered()) == [payload(0), payload(1)]
    assert next(requests, None) is next(entries, None) is None


def test_a_busy_shard_holds_up_no_other_request(aws: Aws, faulty: FaultyAws) -> None:
    """No attempt is counted, and requests without records of its keys do not wait."""
    to = Destination("kinesis", aws, faulty)
    now_s, busy = 1000.0, True
    faulty.judge = lambda each: SLOW if busy and number_of("kinesis", each) == 0 else None
    with to.opened(ONCE) as sink:
        sink.close()
        assert isinstance(sink, RequestSink)
        sink.clock = lambda: now_s
        sink.open(ORIGIN)
        batch = to.batch("abcb")
        write(sink, batch.slice(0, 1))
        write(sink, batch.slice(1))
        # By this clock no time passes: the flush ends when all requests have their answers.
        assert sink.flush(end=False).messages == 3
        busy = False
        now_s += ONCE.max_s
        assert sink.flush().messages == 1


@pytest.mark.parametrize("code", ["AccessDeniedException", "ThrottlingException"])
def test_a_service_that_refuses_to_list_answers(code: str, aws: Aws, faulty: FaultyAws) -> None:
    given = {**aws.keys, "type": "kinesis", "stream": "x", "endpoint_url": faulty.url}
    settings = SINKS.find("kinesis").settings.model_validate(given)
    faulty.refuse = lambda _: error(code)
    SINKS.find("kinesis").probe(settings, name="test")
    assert len(faulty.requests) == 1


def test_a_request_that_is_too_long_is_divided(aws: Aws, faulty: FaultyAws) -> None:
    to = Destination("sqs", aws, faulty)
    sizes: list[int] = []

    def refuse(operation: str) -> Any:
        if operation != "SendMessageBatch":
            return None
        sizes.append(len(sizes))
        return error("AWS.SimpleQueueService.BatchRequestTooLong") if len(sizes) == 1 else None

    faulty.refuse = refuse
    with to.opened(ONCE) as sink:
        write(sink, to.batch("abcd"))
        assert sink.flush().messages == 4
    assert [len(entries) for entries in faulty.batches] == [1, 1, 1, 1]


def test_a_service_that_fails_for_good_is_unreachable(aws: Aws, faulty: FaultyAws) -> None:
    to = Destination("kinesis", aws, faulty)
    faulty.refuse = lambda _: error("InternalFailure", 500)
    with to.opened() as sink, pytest.raises(SinkUnreachableError, match="InternalFailure"):
        send(sink, to.batch("ab"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_permission_stops_all_messages(kind: str, aws: Aws, faulty: FaultyAws) -> None:
    to = Destination(kind, aws, faulty)
    faulty.refuse = lambda operation: (
        error("AccessDeniedException") if operation.startswith(("Send", "Put")) else None
    )
    permission = {"sqs": "sqs:SendMessage", "kinesis": "kinesis:PutRecords"}
    with to.opened() as sink, pytest.raises(SinkRefusedError, match=to.name) as caught:
        send(sink, to.batch("ab"))
    assert permission.get(kind, "events:PutEvents") in caught.value.hint


@pytest.mark.parametrize("ordered", [True, False])
def test_messages_without_a_key_share_a_request_only_if_order_does_not_matter(
    aws: Aws, faulty: FaultyAws, ordered: bool
) -> None:
    to = Destination("kinesis", aws, faulty)
    with to.opened(ordered=ordered) as sink:
        write(sink, rows(range(5), destination=to.destination.encode()))
        assert sink.flush().messages == 5
    sizes = [len(entries) for entries in faulty.batches]
    assert sizes == ([1] * 5 if ordered else [5])
    assert to.delivered() == [payload(number) for number in range(5)]


def test_a_repeated_message_is_dropped_by_a_fifo_queue_only(aws: Aws, faulty: FaultyAws) -> None:
    for fifo in (False, True):
        to = Destination("sqs", aws, faulty, fifo=fifo)
        for _ in range(2):
            # Spark replays the batch.
            with to.opened() as sink:
                write(sink, to.batch("ab"))
                assert sink.flush().messages == 2
        assert Counter(to.delivered()) == Counter({payload(n): 1 if fifo else 2 for n in (0, 1)})
