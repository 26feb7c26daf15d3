"""Benches of what takes requests: webhooks and the services of AWS."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from tailrace.testing import HttpReceiver, HttpRequest, HttpResponse
from tests.contract.benches.bench import SMALL_LIMIT, Bench, Throttle, lower, number_of
from tests.integration.aws.faulty import FaultyAws, error
from tests.unit.sinks.rows import message_id

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    from tests.contract.benches.bench import Delivered
    from tests.fix_aws import Aws
    from tests.pubsub import Topics


class Receiver(HttpReceiver):
    """Answers for each message of a request, and keeps those that it accepts."""

    def __init__(self) -> None:
        super().__init__(self._answered)
        self.accepted: list[Delivered] = []
        self.headers: list[dict[str, str]] = []
        self.status: Callable[[bytes], int] = lambda _: 200
        """The status of a message."""
        self.throttle: Throttle | None = None
        self.retry_after = ""
        """The header of answers that do not accept."""
        self._accepting = threading.Lock()

    @override
    def keep(self, request: HttpRequest) -> None:
        """Nothing: not all of it is accepted."""

    def _answered(self, request: HttpRequest) -> HttpResponse:
        headers = {"retry-after": self.retry_after} if self.retry_after else {}
        with self._accepting:
            if self.throttle is not None and self.throttle.applies():
                return HttpResponse(status=429, headers=headers)
            array = request.body.startswith(b"[")
            bodies = _elements(request.body) if array else [request.body]
            statuses = [self.status(body) for body in bodies]
            for body, status in zip(bodies, statuses, strict=True):
                if status == 200:
                    name = message_id(number_of(body)) if array else request.id.encode()
                    self.accepted.append((request.path.encode(), name, body))
                    self.headers.append(dict(request.headers))
        if not array:
            return HttpResponse(status=statuses[0], headers=headers if statuses[0] != 200 else {})
        results = json.dumps({"results": [{"status": status} for status in statuses]})
        return HttpResponse(status=207, body=results.encode())


def _elements(body: bytes) -> list[bytes]:
    """The documents of an array, as they were sent."""
    return [json.dumps(each, separators=(",", ":")).encode() for each in json.loads(body)]


class HttpBench(Bench):
    """A webhook, with a message or an array of messages in a request."""

    prefix = "/cdc"
    refused_until_restart = False

    def __init__(self, receiver: Receiver, **keys: Any) -> None:
        self.port = receiver.port
        self._receiver = receiver
        self._keys = keys

    def keys(self, port: int, timeout_s: float) -> dict[str, Any]:
        url = f"http://127.0.0.1:{port}"
        given = {"type": "http", "url": url, "allow_private": True, "timeout_s": timeout_s}
        return {**given, **self._keys}

    def delivered(self) -> list[Delivered]:
        return list(self._receiver.accepted)

    @override
    def headers(self) -> list[dict[str, str]]:
        return list(self._receiver.headers)

    def refuse(self) -> None:
        self._receiver.status = lambda body: 422 if len(body) > SMALL_LIMIT else 200

    def accept(self) -> None:
        self._receiver.status = lambda _: 200

    @override
    @contextmanager
    def throttling(self, after_s: int) -> Iterator[Throttle]:
        throttle = self._receiver.throttle = Throttle()
        self._receiver.retry_after = str(after_s)
        yield throttle
        self._receiver.throttle = None

    @override
    @contextmanager
    def failing_for_now(self) -> Iterator[None]:
        self._receiver.status = lambda body: 503 if len(body) > SMALL_LIMIT else 200
        yield
        self.accept()

    @contextmanager
    def delaying(self, number: int, after_s: int) -> Iterator[None]:
        """Within the block a message fails, and is to be sent again after some seconds."""
        self._receiver.status = lambda body: 500 if number_of(body) == number else 200
        self._receiver.retry_after = str(after_s)
        yield
        self.accept()


class HttpArrayBench(HttpBench):
    """A webhook that answers for each document of an array."""

    def __init__(self, receiver: Receiver) -> None:
        super().__init__(receiver, body="array", batch_rows=7)

    @override
    @contextmanager
    def failing_in_part(self, rng: random.Random) -> Iterator[None]:
        self._receiver.status = lambda _: 503 if rng.random() < 0.3 else 200
        yield
        self.accept()


_FAULTS: dict[str, dict[str, Any]] = {
    "sqs": {"Code": "InternalError", "SenderFault": False, "Message": "no"},
    "sns": {"Code": "InternalError", "SenderFault": False, "Message": "no"},
    "kinesis": {"ErrorCode": "InternalFailure", "ErrorMessage": "no"},
    "eventbridge": {"ErrorCode": "InternalFailure", "ErrorMessage": "no"},
}
_REFUSALS: dict[str, dict[str, Any]] = {
    "sqs": {"Code": "InvalidMessageContents", "SenderFault": True, "Message": "no"},
    "sns": {"Code": "InvalidParameter", "SenderFault": True, "Message": "no"},
    "eventbridge": {"ErrorCode": "MalformedDetail", "ErrorMessage": "no"},
}
_SENDS = re.compile("Send|Put|Publish")


class AwsBench(Bench):
    """Destinations of one service, which are created when they are named."""

    def __init__(self, kind: str, aws: Aws, port: int, *, suffix: str = "", **keys: Any) -> None:
        self.port = port
        self._kind = kind
        self._aws = aws
        self._name = aws.unused("c")
        self._suffix = suffix
        self._keys = keys
        self._places: dict[str, bytes] = {}
        self._received: dict[str, list[Delivered]] = defaultdict(list)
        self._stack = ExitStack()

    @override
    def place(self, table: str = "orders") -> bytes:
        name = f"{self._name}-{table}{self._suffix}"
        if name not in self._places:
            self._places[name] = self._create(name).encode()
        return self._places[name]

    def _create(self, name: str) -> str:
        match self._kind:
            case "sqs":
                return self._aws.queue(name)
            case "sns":
                return self._aws.topic(name)
            case "kinesis":
                self._aws.stream(name)
                return name
            case _:
                self._aws.bus(name)
                return f"{name} an insert"

    def keys(self, port: int, timeout_s: float) -> dict[str, Any]:
        login = {**self._aws.keys, "endpoint_url": f"http://127.0.0.1:{port}"}
        return {"type": self._kind, "timeout_s": timeout_s, **login, **self._keys}

    def delivered(self) -> list[Delivered]:
        for name, destination in self._places.items():
            found = self._records(name) if self._kind == "kinesis" else self._messages(name)
            self._received[name] += [(destination, *each) for each in found]
        return [each for name in self._places for each in self._received[name]]

    @override
    def headers(self) -> list[dict[str, str]]:
        return [
            lower((at, of["StringValue"]) for at, of in each["MessageAttributes"].items())
            for name in self._places
            for each in self._aws.received(name)
        ]

    def _messages(self, name: str) -> Iterator[tuple[bytes, bytes]]:
        for each in self._aws.received(name):
            if self._kind == "eventbridge":
                event = json.loads(each["Body"])
                yield event["resources"][0].encode(), _detail(event["detail"])
                continue
            values = {at: of["StringValue"] for at, of in each["MessageAttributes"].items()}
            encoded = values.get("encoding") == "base64"
            body = base64.b64decode(each["Body"]) if encoded else each["Body"].encode()
            yield values["id"].encode(), body

    def _records(self, name: str) -> Iterator[tuple[bytes, bytes]]:
        """Records have no ids: the tests' payloads have the number of the message."""
        records = self._aws.records(name)
        for each in records[len(self._received[name]) :]:
            number = number_of(each["Data"])
            yield b"" if number < 0 else message_id(number), each["Data"]

    @override
    def refuse(self) -> None:
        """Kinesis refuses no record."""
        if self._kind not in _REFUSALS:
            super().refuse()
            return
        faulty = self._stack.enter_context(self._through())
        faulty.judge = lambda entry: (
            _REFUSALS[self._kind] if len(json.dumps(entry)) > SMALL_LIMIT else None
        )

    @override
    def accept(self) -> None:
        super().accept()
        self._stack.close()

    @contextmanager
    def _through(self) -> Iterator[FaultyAws]:
        """Sinks that are made within the block connect to a server that fails."""
        own = self.port
        with FaultyAws(self._aws.url) as faulty:
            self.port = faulty.port
            yield faulty
        self.port = own

    def close(self) -> None:
        """Stop what still fails."""
        self._stack.close()

    @override
    @contextmanager
    def failing_in_part(self, rng: random.Random) -> Iterator[None]:
        fault = _FAULTS[self._kind]
        with self._through() as faulty:
            faulty.judge = lambda _: fault if rng.random() < 0.3 else None
            yield

    @override
    @contextmanager
    def failing_for_now(self) -> Iterator[None]:
        fault = _FAULTS[self._kind]
        with self._through() as faulty:
            faulty.judge = lambda entry: fault if len(json.dumps(entry)) > SMALL_LIMIT else None
            yield

    @override
    @contextmanager
    def throttling(self, after_s: int) -> Iterator[Throttle]:
        throttle = Throttle()
        code = "ProvisionedThroughputExceededException" if self._kind == "kinesis" else "Throttling"

        def refuse(operation: str) -> HttpResponse | None:
            asks = _SENDS.match(operation) and throttle.applies()
            return error(code, retry_after=str(after_s)) if asks else None

        with self._through() as faulty:
            faulty.refuse = refuse
            yield throttle


class PubSubBench(Bench):
    """Topics, which are created when they are named."""

    acceptance = re.compile(rb"projects/[^/]+/topics/")

    def __init__(self, topics: Topics, port: int, **keys: Any) -> None:
        self.port = port
        self._topics = topics
        self._keys = keys
        self._name = topics.unused("c")
        self._received: dict[str, list[Delivered]] = {}

    @override
    def place(self, table: str = "orders") -> bytes:
        name = f"{self._name}.{table}"
        if name not in self._received:
            self._received[self._topics.create(name)] = []
        return name.encode()

    def keys(self, port: int, timeout_s: float) -> dict[str, Any]:
        own = {"type": "pubsub", "topic": "{table}", "timeout_s": timeout_s}
        at = {"endpoint_url": f"http://127.0.0.1:{port}"}
        return {**own, **self._topics.keys, **at, **self._keys}

    def delivered(self) -> list[Delivered]:
        for name, found in self._received.items():
            for each in self._topics.received(name):
                assert each.attributes["destination"] == name
                found.append((name.encode(), each.attributes["id"].encode(), each.data))
        return [each for found in self._received.values() for each in found]

    @override
    def headers(self) -> list[dict[str, str]]:
        return [
            lower(each.attributes.items())
            for name in self._received
            for each in self._topics.received(name)
        ]


def _detail(detail: Any) -> bytes:
    """The payload in the detail of an event."""
    if isinstance(detail, dict) and detail.get("encoding") == "base64":
        return base64.b64decode(detail["payload"])
    return json.dumps(detail, separators=(",", ":")).encode()
