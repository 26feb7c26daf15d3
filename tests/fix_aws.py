"""Fixtures for services of AWS: servers of moto in processes of their own, one per session."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING, Any, Self

import pytest

from tailrace.testing.process import Server, free_port
from tests.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ACCOUNT = "123456789012"
"""The account of moto."""
REGION = "us-east-1"


class MotoServer(Server):
    """A server for all services. What it holds is in its memory. With `accounts` it has none, and
    refuses every login."""

    def __init__(self, *, certificate: Path | None = None, accounts: bool = False) -> None:
        super().__init__("moto")
        self._certificate = certificate
        self._env = os.environ | ({"INITIAL_NO_AUTH_ACTION_COUNT": "0"} if accounts else {})
        self.port = free_port()

    @property
    def url(self) -> str:
        scheme = "http" if self._certificate is None else "https"
        return f"{scheme}://127.0.0.1:{self.port}"

    def start(self) -> Self:
        tls = []
        if self._certificate is not None:
            key = self._certificate.with_suffix(".key")
            tls = ["-c", str(self._certificate), "-k", str(key)]
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *tls], stdout=log, stderr=log, env=self._env
            )
        wait_for(self._listens, self.recent_log)
        return self

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True


class Aws:
    """What tests create at a server of AWS, and read from it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.keys: dict[str, Any] = {
            "endpoint_url": url,
            "region": REGION,
            "access_key_id": "an-access-key",
            "secret_access_key": "planted-secret-of-aws",
        }
        """Settings of a sink."""
        # Every run of the tests loads this module.
        import botocore.session  # noqa: PLC0415

        session = botocore.session.Session()
        session.set_credentials("an-access-key", "planted-secret-of-aws")
        self.sqs, self.sns, self.kinesis, self.events = (
            session.create_client(name, region_name=REGION, endpoint_url=url)
            for name in ("sqs", "sns", "kinesis", "events")
        )

    def close(self) -> None:
        for client in (self.sqs, self.sns, self.kinesis, self.events):
            client.close()

    @staticmethod
    def unused(prefix: str = "t") -> str:
        """A name of nothing yet."""
        return f"{prefix}{uuid.uuid4().hex[:8]}"

    def create(self, kind: str, name: str) -> None:
        """What a sink of a kind sends to."""
        match kind:
            case "sqs":
                self.queue(name)
            case "sns":
                self.topic(name)
            case "kinesis":
                self.stream(name)
            case "eventbridge":
                self.bus(name)

    def queue(self, name: str) -> str:
        """The URL of a new queue."""
        fifo = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
        url: str = self.sqs.create_queue(QueueName=name, Attributes=fifo)["QueueUrl"]
        return url

    def received(self, name: str) -> list[dict[str, Any]]:
        """All messages of a queue, in its order. Leaves none."""
        url = self.sqs.get_queue_url(QueueName=name)["QueueUrl"]
        found: list[dict[str, Any]] = []
        while messages := self.sqs.receive_message(
            QueueUrl=url,
            MaxNumberOfMessages=10,
            MessageAttributeNames=["All"],
            AttributeNames=["All"],
        ).get("Messages"):
            found += messages
            for each in messages:
                self.sqs.delete_message(QueueUrl=url, ReceiptHandle=each["ReceiptHandle"])
        return found

    def topic(self, name: str) -> str:
        """The ARN of a new topic. A queue of its name gets what is published."""
        fifo = {"FifoTopic": "true"} if name.endswith(".fifo") else {}
        arn: str = self.sns.create_topic(Name=name, Attributes=fifo)["TopicArn"]
        self.queue(name)
        self.sns.subscribe(
            TopicArn=arn,
            Protocol="sqs",
            Endpoint=f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}",
            Attributes={"RawMessageDelivery": "true"},
        )
        return arn

    def stream(self, name: str, *, shards: int = 1) -> None:
        """A new stream."""
        self.kinesis.create_stream(StreamName=name, ShardCount=shards)

    def records(self, name: str) -> list[dict[str, Any]]:
        """All records of a stream, shard by shard."""
        found: list[dict[str, Any]] = []
        for shard in self.kinesis.list_shards(StreamName=name)["Shards"]:
            at = self.kinesis.get_shard_iterator(
                StreamName=name, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
            )["ShardIterator"]
            while page := self.kinesis.get_records(ShardIterator=at):
                if not page["Records"]:
                    break
                found += page["Records"]
                at = page["NextShardIterator"]
        return found

    def bus(self, name: str) -> None:
        """A new bus. A queue of its name gets all events."""
        self.events.create_event_bus(Name=name)
        self.queue(name)
        pattern = json.dumps({"source": [{"prefix": ""}]})
        self.events.put_rule(Name="all", EventBusName=name, EventPattern=pattern)
        target = {"Id": "queue", "Arn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"}
        self.events.put_targets(Rule="all", EventBusName=name, Targets=[target])


@pytest.fixture(scope="session")
def moto_server() -> Iterator[MotoServer]:
    """A server, shared: every test has names of its own."""
    if importlib.util.find_spec("moto") is None:
        pytest.skip("moto is not installed")
    with MotoServer() as server:
        yield server


@pytest.fixture(scope="session")
def aws(moto_server: MotoServer) -> Iterator[Aws]:
    """Clients for the shared server."""
    made = Aws(moto_server.url)
    yield made
    made.close()
