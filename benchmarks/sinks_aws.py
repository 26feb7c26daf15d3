"""SQS and Kinesis: the sinks, and botocore alone with threads and requests as large.

The receiver is a process that accepts every entry, so that only the clients are measured.
"""

from __future__ import annotations

import json
import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import botocore.session

from tailrace.testing import HttpReceiver, HttpRequest, HttpResponse

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

    import pyarrow as pa

_REGION = "us-east-1"
_CONCURRENCY = 16
_ENTRIES = {"sqs": 10, "kinesis": 500}


class _Accepting(HttpReceiver):
    def __init__(self) -> None:
        super().__init__(self._accept)

    def keep(self, request: HttpRequest) -> None:
        """Nothing: memory would grow."""

    def _accept(self, request: HttpRequest) -> HttpResponse:
        if request.headers["x-amz-target"].startswith("Kinesis"):
            count = request.body.count(b'"PartitionKey"')
            answer: Any = {"Records": [{"SequenceNumber": "1", "ShardId": "s"}] * count}
        else:
            count = request.body.count(b'"MessageBody"')
            answer = {"Successful": [{"Id": str(each)} for each in range(count)]}
        return HttpResponse(body=json.dumps(answer).encode())


def _serve(port: Connection) -> None:
    with _Accepting() as receiver:
        port.send(receiver.port)
        threading.Event().wait()


@contextmanager
def receiver() -> Iterator[str]:
    """The URL of a receiver."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,))
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.kill()
        process.join()


def settings_of(kind: str, url: str) -> dict[str, Any]:
    """The settings of a sink."""
    queue = f"{url}/123456789012/queue"
    return {
        **({"queue": queue} if kind == "sqs" else {"stream": "stream"}),
        "endpoint_url": url,
        "region": _REGION,
        "access_key_id": "key",
        "secret_access_key": "secret",
        "concurrency": _CONCURRENCY,
    }


def destination_of(kind: str, url: str) -> bytes:
    """Where messages go."""
    return f"{url}/123456789012/queue".encode() if kind == "sqs" else b"stream"


def send(kind: str, url: str, batches: list[pa.RecordBatch]) -> None:
    """Send messages through botocore."""
    session = botocore.session.Session()
    session.set_credentials("key", "secret")
    config = botocore.config.Config(max_pool_connections=_CONCURRENCY)
    client = session.create_client(kind, region_name=_REGION, endpoint_url=url, config=config)

    def request(rows: pa.RecordBatch) -> None:
        columns = (rows.column(name).to_pylist() for name in ("id", "key", "payload"))
        messages = zip(*columns, strict=True)
        if kind == "sqs":
            entries = [_entry(str(at), *message) for at, message in enumerate(messages)]
            client.send_message_batch(QueueUrl=f"{url}/123456789012/queue", Entries=entries)
        else:
            records = [
                {"Data": payload, "PartitionKey": key.decode()} for _, key, payload in messages
            ]
            client.put_records(StreamName="stream", Records=records)

    size = _ENTRIES[kind]
    with ThreadPoolExecutor(_CONCURRENCY) as pool:
        for batch in batches:
            parts = [batch.slice(start, size) for start in range(0, batch.num_rows, size)]
            list(pool.map(request, parts))
    client.close()


def _entry(at: str, name: bytes, key: bytes, payload: bytes) -> dict[str, Any]:
    attributes = {"id": name.decode(), "key": key.decode()}
    return {
        "Id": at,
        "MessageBody": payload.decode(),
        "MessageAttributes": {
            each: {"DataType": "String", "StringValue": value} for each, value in attributes.items()
        },
    }
