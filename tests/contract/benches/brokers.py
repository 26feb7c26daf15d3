"""Benches of brokers: NATS, Kafka and RabbitMQ."""

from __future__ import annotations

import asyncio
import re
import struct
import threading
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import amqp
import nats
from confluent_kafka.admin import AdminClient
from typing_extensions import override

from tailrace.testing import TcpProxy
from tests import topics
from tests.contract.benches.bench import SMALL_LIMIT, Bench, lower
from tests.contract.benches.case import Case
from tests.fix_broker import KAFKA_MESSAGE_BYTES
from tests.integration.kafka.reading import Bench as Topic

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from nats.js import JetStreamContext

    from tailrace.testing import EmbeddedKafka, EmbeddedNats, EmbeddedRabbitMQ
    from tests.contract.benches.bench import Delivered


class NatsBench(Bench):
    """A stream that refuses messages by its limit."""

    prefix = "cdc"
    once = True
    acceptance = re.compile(b"HPUB")
    refused_until_restart = False

    def __init__(self, server: EmbeddedNats) -> None:
        self._url = server.url
        self.port = server.port
        self._headers: list[dict[str, str]] = []

    def keys(self, port: int, timeout_s: float) -> dict[str, Any]:
        return {"type": "nats", "url": f"nats://127.0.0.1:{port}", "timeout_s": timeout_s}

    def delivered(self) -> list[Delivered]:
        return asyncio.run(self._read())

    async def _read(self) -> list[Delivered]:
        client = await nats.connect(self._url)
        js = client.jetstream(timeout=60)
        found = []
        state = (await js.stream_info("CDC")).state
        for sequence in range(state.first_seq, state.last_seq + 1) if state.messages else ():
            message = await js.get_msg("CDC", sequence)
            assert message.subject is not None
            name = (message.headers or {})["Nats-Msg-Id"]
            found.append((message.subject.encode(), name.encode(), message.data or b""))
            self._headers.append(lower((message.headers or {}).items()))
        await client.close()
        return found

    @override
    def headers(self) -> list[dict[str, str]]:
        self._headers = []
        self.delivered()
        return self._headers

    def refuse(self) -> None:
        asyncio.run(self._limit(SMALL_LIMIT))

    def accept(self) -> None:
        asyncio.run(self._limit(-1))

    async def _limit(self, size: int) -> None:
        client = await nats.connect(self._url)
        js: JetStreamContext = client.jetstream(timeout=60)
        config = (await js.stream_info("CDC")).config
        config.max_msg_size = size
        await js.update_stream(config)
        await client.close()


class KafkaProxy(TcpProxy):
    """Puts its own address into the broker's answers: clients connect to what a broker names."""

    def __init__(self, port: int) -> None:
        self._named = b"127.0.0.1" + struct.pack(">i", port)
        super().__init__("127.0.0.1", port)
        self._own = b"127.0.0.1" + struct.pack(">i", self.port)

    @override
    def answer(self, data: bytes) -> bytes:
        return data.replace(self._named, self._own)


class KafkaBench(Bench):
    """Topics of a prefix, with a limit for the sizes of batches. A sink looks it up."""

    def __init__(self, server: EmbeddedKafka, *, transactional: bool) -> None:
        self.prefix = self.pipeline = f"c{uuid.uuid4().hex[:8]}"
        self.port = server.port
        self.once = self.fences = transactional
        self._bootstrap = server.bootstrap
        self._transactional = transactional
        # A request begins with its size and its kind: 0 is Produce, 26 EndTxn.
        kind = b"\x00\x1a" if transactional else b"\x00\x00"
        self.acceptance = re.compile(b"^.{4}" + kind, re.DOTALL)

    def keys(self, port: int, timeout_s: float) -> dict[str, Any]:
        return {
            "type": "kafka",
            "bootstrap": f"127.0.0.1:{port}",
            "transactional": self._transactional,
            "compression": "none",
            "timeout_s": timeout_s,
        }

    @override
    def refuse(self) -> None:
        self._limit(SMALL_LIMIT)

    @override
    def accept(self) -> None:
        self._limit(KAFKA_MESSAGE_BYTES)

    def _limit(self, size: int) -> None:
        topic = self.refused_place().decode()
        topics.alter(self._bootstrap, topic, {"max.message.bytes": str(size)})

    @override
    def proxy(self) -> TcpProxy:
        return KafkaProxy(self.port)

    def delivered(self) -> list[Delivered]:
        admin = AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 0})
        names = sorted(
            topic
            for topic in admin.list_topics(timeout=60).topics
            if topic.startswith(f"{self.prefix}.")
        )
        return [
            (topic.encode(), found.id.encode(), found.value)
            for topic in names
            for found in Topic(self._bootstrap, topic).held()
        ]

    @override
    def headers(self) -> list[dict[str, str]]:
        found = []
        for each in topics.messages(self._bootstrap, f"{self.prefix}.orders.insert"):
            pairs: Any = each.headers()
            found.append(lower((name, value.decode()) for name, value in pairs))
        return found


class RabbitMQBench(Bench):
    """One queue gets everything, in the order of arrival. The exchange for refused messages has no
    queue."""

    acceptance = re.compile(re.escape(b"\x00\x3c\x00\x28"))
    """The method basic.publish."""
    refused_until_restart = False

    def __init__(self, server: EmbeddedRabbitMQ, queue_type: str) -> None:
        self._exchange = self.pipeline = f"c{uuid.uuid4().hex[:8]}"
        self.prefix = f"{self._exchange}/cdc"
        self.port = server.port
        self._queue_type = queue_type
        self._found: list[Delivered] = []
        self._headers: list[dict[str, str]] = []
        self._declare()
        with self._channel() as channel:
            channel.exchange_declare(self._refusing, "topic", durable=True, auto_delete=False)

    @property
    def _refusing(self) -> str:
        return f"{self._exchange}-refused"

    @override
    def refused_place(self) -> bytes:
        return self.place().replace(b"/", b"-refused/")

    @contextmanager
    def _channel(self) -> Iterator[Any]:
        with amqp.Connection(f"127.0.0.1:{self.port}", login_method="PLAIN") as client:
            channel = client.channel()
            channel.auto_decode = False
            yield channel

    def _declare(self, **arguments: Any) -> None:
        with self._channel() as channel:
            channel.exchange_declare(self._exchange, "topic", durable=True, auto_delete=False)
            channel.queue_delete(self._exchange)
            given = {"x-queue-type": self._queue_type, **arguments}
            channel.queue_declare(self._exchange, durable=True, auto_delete=False, arguments=given)
            channel.queue_bind(self._exchange, self._exchange, "#")

    def keys(self, port: int, timeout_s: float) -> dict[str, Any]:
        return {
            "type": "rabbitmq",
            "url": f"amqp://127.0.0.1:{port}",
            "timeout_s": timeout_s,
            "declare": "none",
        }

    def delivered(self) -> list[Delivered]:
        with self._channel() as channel:
            while (found := channel.basic_get(self._exchange, no_ack=True)) is not None:
                exchange, key = (found.delivery_info[name] for name in ("exchange", "routing_key"))
                name = found.properties["message_id"]
                self._found.append((f"{exchange}/{key}".encode(), name.encode(), found.body or b""))
                self._headers.append(lower(found.properties["application_headers"].items()))
        return list(self._found)

    @override
    def headers(self) -> list[dict[str, str]]:
        self.delivered()
        return self._headers

    def refuse(self) -> None:
        """Its exchange returns them: it has no queue."""

    def accept(self) -> None:
        with self._channel() as channel:
            channel.queue_bind(self._exchange, self._refusing, "#")

    @override
    def can(self, case: Case) -> bool:
        return super().can(case) and (case is not Case.ALWAYS or self._queue_type == "classic")

    @override
    @contextmanager
    def failing_for_now(self) -> Iterator[None]:
        """Another queue gets them, which is full."""
        full = f"{self._exchange}-full"
        given = {"x-max-length": 1, "x-overflow": "reject-publish"}
        with self._channel() as channel:
            channel.queue_declare(full, durable=True, auto_delete=False, arguments=given)
            channel.basic_publish_confirm(amqp.Message(b"first"), routing_key=full)
            channel.queue_bind(full, self._refusing, "#")
        yield
        with self._channel() as channel:
            channel.queue_delete(full)
        self.accept()

    @override
    @contextmanager
    def failing_in_part(self, rng: random.Random) -> Iterator[None]:
        """The queue is full most of the time, while a consumer reads it."""
        del rng
        self._declare(**{"x-max-length": 3, "x-overflow": "reject-publish"})
        done = threading.Event()

        def consume() -> None:
            while not done.wait(0.01):
                self.delivered()

        consumer = threading.Thread(target=consume)
        consumer.start()
        try:
            yield
        finally:
            done.set()
            consumer.join()
