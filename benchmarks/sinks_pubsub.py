"""Pub/Sub: the sink, and the batching publisher of Google's library with the same messages.

The server is a process that accepts every request, so that only the clients are measured.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
from google.cloud import pubsub_v1
from google.pubsub_v1.types import PublishRequest, PublishResponse

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

    import pyarrow as pa

TOPIC = b"orders"
_PROJECT = "project"
_CONCURRENCY = 64
_ROWS = 1000


class _Accepting(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    def service(self, _: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(_accept)


def _accept(body: bytes, _: Any) -> bytes:
    count = len(PublishRequest.pb().FromString(body).messages)
    answer = PublishResponse.pb()(message_ids=["1"] * count)
    return bytes(answer.SerializeToString())


def _serve(port: Connection) -> None:
    server = grpc.server(ThreadPoolExecutor(4), handlers=(_Accepting(),))
    port.send(server.add_insecure_port("127.0.0.1:0"))
    server.start()
    threading.Event().wait()


@contextmanager
def server() -> Iterator[int]:
    """The port of a server."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,))
    process.start()
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()


def settings_of(port: int, *, ordering: bool) -> dict[str, Any]:
    """The settings of the sink."""
    return {
        "project": _PROJECT,
        "topic": TOPIC.decode(),
        "endpoint_url": f"http://127.0.0.1:{port}",
        "ordering": ordering,
        "concurrency": _CONCURRENCY,
    }


def send(port: int, batches: list[pa.RecordBatch], *, ordering: bool, rows: int) -> None:
    """Publish messages through the library, in requests of at most so many."""
    os.environ["PUBSUB_EMULATOR_HOST"] = f"127.0.0.1:{port}"
    client = pubsub_v1.PublisherClient(
        batch_settings=pubsub_v1.types.BatchSettings(max_messages=rows),
        publisher_options=pubsub_v1.types.PublisherOptions(enable_message_ordering=ordering),
    )
    topic = f"projects/{_PROJECT}/topics/{TOPIC.decode()}"
    names = ("payload", "id", "key", "lsn", "ordinal")
    futures = []
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in names)
        for payload, name, key, lsn, ordinal in zip(*columns, strict=True):
            attributes = {
                "id": name.decode(),
                "key": key.decode(),
                "destination": TOPIC.decode(),
                "position": f"{lsn:016x}-{ordinal}",
            }
            order = attributes["key"] if ordering else ""
            futures.append(client.publish(topic, payload, ordering_key=order, **attributes))
    client.stop()
    assert all(future.result() for future in futures)
    client.transport.close()
