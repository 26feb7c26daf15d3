"""The sinks for AWS against real servers: what arrives, logins, TLS, and what `check` says."""

from __future__ import annotations

import base64
import hashlib
import json
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tailrace.errors import SinkError, SinkRefusedError, SinkUnreachableError
from tailrace.finding import Severity
from tailrace.message import MESSAGES
from tailrace.position import ORIGIN
from tailrace.sinks.contract import Lane
from tailrace.sinks.outcome import Verdict
from tailrace.sinks.registry import SINKS
from tailrace.sinks.retry import Retry
from tests.fix_aws import ACCOUNT, REGION, Aws, MotoServer
from tests.integration.aws.faulty import FaultyAws
from tests.unit.sinks.rows import message_id, payload, rows, with_column, with_groups, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.sinks.contract import Receipt, Sink

SOON = Retry(attempts=3, first_s=0.01, max_s=0.05)
TEMPLATES = {"sqs": "queue", "sns": "topic", "kinesis": "stream", "eventbridge": "bus"}
PREFIX = f"arn:aws:sns:{REGION}:{ACCOUNT}:"
NOWHERE = {
    "sqs": "queue missing-orders",
    "sns": f"topic {PREFIX}missing-orders",
    "kinesis": "stream missing-orders",
    "eventbridge": "event bus missing-orders",
}


def settings_of(kind: str, aws: Aws, **keys: Any) -> Any:
    name = PREFIX + "x" if kind == "sns" else "x"
    given = {"type": kind, TEMPLATES[kind]: name, **aws.keys, **keys}
    return SINKS.find(kind).settings.model_validate(given)


@contextmanager
def opened(kind: str, aws: Aws, **keys: Any) -> Iterator[Sink]:
    lane = Lane(pipeline="test", retry=SOON)
    sink = SINKS.find(kind).open(settings_of(kind, aws, **keys), lane)
    sink.open(ORIGIN)
    try:
        yield sink
    finally:
        sink.close()


def deliver(kind: str, aws: Aws, batch: pa.RecordBatch, **keys: Any) -> Receipt:
    with opened(kind, aws, **keys) as sink:
        write(sink, batch)
        return sink.flush()


def documents(destination: str, *keys: bytes | None) -> pa.RecordBatch:
    """A message per key, with a JSON document each."""
    batch = rows(range(len(keys)), destination=destination.encode())
    batch = with_column(batch, "payload", [b'{"n":%d}' % n for n in range(len(keys))])
    return with_column(batch, "key", list(keys))


def destination_of(kind: str, name: str) -> str:
    return {"sns": PREFIX + name, "eventbridge": f"{name} an insert"}.get(kind, name)


@pytest.mark.parametrize("kind", ["sqs", "sns"])
def test_attributes_groups_and_ids(kind: str, aws: Aws) -> None:
    name = aws.unused() + ".fifo"
    aws.topic(name)
    odd = "žluť 1".encode()
    batch = documents(destination_of(kind, name), b"42", odd, None)
    assert deliver(kind, aws, batch).messages == 3
    found = {each["Body"]: each for each in aws.received(name)}
    first, second, third = (found[f'{{"n":{n}}}'] for n in range(3))
    assert values(first) == {"id": message_id(0).decode(), "key": "42"}
    assert values(second) == {"id": message_id(1).decode(), "key": odd.decode()}
    assert values(third) == {"id": message_id(2).decode()}
    groups = [each["Attributes"]["MessageGroupId"] for each in (first, second, third)]
    digest = hashlib.blake2s(odd, digest_size=16).hexdigest()
    assert groups == ["42", digest, "table-0000000000000001"]
    assert first["Attributes"]["MessageDeduplicationId"] == message_id(0).decode()


@pytest.mark.parametrize("kind", ["sqs", "kinesis"])
def test_a_group_takes_the_place_of_the_key(kind: str, aws: Aws) -> None:
    fifo = kind == "sqs"
    name = aws.unused() + (".fifo" if fifo else "")
    if fifo:
        aws.queue(name)
    else:
        aws.stream(name, shards=1)
    batch = with_groups(documents(name, b"1", b"2", b"3"), [(b"a", b"a"), (b"a", b"b"), None])
    assert deliver(kind, aws, batch).messages == 3
    if fifo:
        found = [each["Attributes"]["MessageGroupId"] for each in aws.received(name)]
    else:
        found = [each["PartitionKey"] for each in aws.records(name)]
    assert sorted(found) == ["3", "a", "a"]


def values(message: dict[str, Any]) -> dict[str, str]:
    return {name: each["StringValue"] for name, each in message["MessageAttributes"].items()}


def test_a_payload_that_is_no_text_is_base64(aws: Aws) -> None:
    name = aws.unused()
    aws.queue(name)
    batch = rows(range(1), destination=name.encode())
    assert deliver("sqs", aws, batch).messages == 1
    [found] = aws.received(name)
    assert values(found)["encoding"] == "base64"
    assert base64.b64decode(found["Body"]) == payload(0)


def test_a_queue_by_its_url(aws: Aws) -> None:
    name = aws.unused()
    batch = documents(aws.queue(name), b"1")
    assert deliver("sqs", aws, batch).messages == 1
    assert len(aws.received(name)) == 1


def test_records_have_the_key_as_partition_key(aws: Aws) -> None:
    name = aws.unused()
    aws.stream(name, shards=3)
    assert deliver("kinesis", aws, documents(name, b"1", b"2", b"1", None)).messages == 4
    found = [(each["PartitionKey"], each["Data"]) for each in aws.records(name)]
    assert sorted(found) == [
        ("1", b'{"n":0}'), ("1", b'{"n":2}'), ("2", b'{"n":1}'),
        ("table-0000000000000001", b'{"n":3}'),
    ]  # fmt: skip
    assert [data for key, data in found if key == "1"] == [b'{"n":0}', b'{"n":2}']
    arn = f"arn:aws:kinesis:{REGION}:{ACCOUNT}:stream/{name}"
    assert deliver("kinesis", aws, documents(arn, b"3")).messages == 1


def test_events(aws: Aws) -> None:
    name = aws.unused()
    aws.bus(name)
    batch = documents(f"{name} order created", b"1")
    at = MESSAGES.get_field_index("committed_at")
    moment_us = 1_790_000_000_000_000
    batch = batch.set_column(at, MESSAGES.field(at), pa.array([moment_us], pa.int64()))
    assert deliver("eventbridge", aws, batch, source="shop").messages == 1
    [found] = aws.received(name)
    event = json.loads(found["Body"])
    assert (event["source"], event["detail-type"]) == ("shop", "order created")
    assert event["detail"] == {"n": 0}
    assert event["resources"] == [message_id(0).decode()]
    assert datetime.fromisoformat(event["time"]).timestamp() == moment_us / 1_000_000


@pytest.mark.parametrize(
    ("kind", "destination"),
    [
        ("sqs", b"public.orders"),
        ("sqs", b"\xff"),
        ("sns", b"orders"),
        ("kinesis", b"a/b"),
        ("eventbridge", b"default"),
        ("eventbridge", b"default \xff"),
    ],
)
def test_a_destination_that_cannot_be_is_refused(kind: str, destination: bytes, aws: Aws) -> None:
    with opened(kind, aws) as sink:
        outcome = sink.inspect(rows(range(2), destination=destination))
    assert set(outcome) == {0, 1}
    assert outcome[0].verdict is Verdict.REFUSED
    assert "route" in outcome[0].hint


@pytest.mark.parametrize("kind", TEMPLATES)
def test_a_missing_destination_is_named_with_its_fix(kind: str, aws: Aws) -> None:
    batch = documents(destination_of(kind, "missing-orders"), b"1")
    with pytest.raises(SinkRefusedError, match="missing-orders") as caught:
        deliver(kind, aws, batch)
    assert "create-" in caught.value.hint
    assert "missing-orders" in caught.value.hint


@pytest.mark.parametrize("kind", TEMPLATES)
def test_check(kind: str, aws: Aws) -> None:
    sink, settings = SINKS.find(kind), settings_of(kind, aws)
    assert [each.severity for each in sink.check(settings)] == [Severity.OK]
    name = aws.unused()
    aws.create(kind, name)
    there, nowhere = destination_of(kind, name), destination_of(kind, "missing-orders")
    invalid = {"eventbridge": "default"}.get(kind, "an invalid name/")
    found = list(sink.check_destinations(settings, [there, nowhere, there, invalid]))
    assert [each.severity for each in found] == [Severity.ERROR, Severity.OK, Severity.ERROR]
    assert invalid in found[0].finding
    assert name in found[1].finding
    assert NOWHERE[kind] in found[2].finding
    assert "create-" in found[2].fix


def test_check_compares_sizes(aws: Aws) -> None:
    name = aws.unused()
    url = aws.queue(name)
    aws.sqs.set_queue_attributes(QueueUrl=url, Attributes={"MaximumMessageSize": "2000"})
    settings = settings_of("sqs", aws)
    [finding] = SINKS.find("sqs").check_destinations(settings, [name])
    assert finding.severity is Severity.WARNING
    assert "at most 2000 bytes" in finding.finding


@pytest.mark.parametrize("kind", TEMPLATES)
def test_a_server_that_is_down_and_comes_back(kind: str) -> None:
    server = MotoServer()
    aws = Aws(server.url)
    batch = documents(destination_of(kind, "orders"), b"1", b"2")
    lane = Lane(pipeline="test", retry=SOON)
    sink = SINKS.find(kind).open(settings_of(kind, aws), lane)
    try:
        sink.open(ORIGIN)
        with pytest.raises(SinkUnreachableError) as caught:
            send(sink, batch)
        assert "endpoint_url" in caught.value.hint
        with pytest.raises(SinkUnreachableError):
            SINKS.find(kind).probe(settings_of(kind, aws), name="test")
        server.start()
        aws.create(kind, "orders")
        sink.open(ORIGIN)
        write(sink, batch)
        assert sink.flush().messages == 2
    finally:
        sink.close()
        aws.close()
        server.destroy()


def send(sink: Sink, batch: pa.RecordBatch) -> None:
    """Send messages and wait for the answers."""
    write(sink, batch)
    sink.flush()


@pytest.fixture(scope="module")
def secure(certificates: Path) -> Iterator[MotoServer]:
    """A server with TLS that has no accounts."""
    with MotoServer(certificate=certificates / "server.crt", accounts=True) as server:
        yield server


@pytest.mark.parametrize("kind", TEMPLATES)
def test_credentials_that_are_wrong(
    kind: str, aws: Aws, secure: MotoServer, certificates: Path
) -> None:
    keys = {"endpoint_url": secure.url, "tls_ca": certificates / "ca.crt"}
    with pytest.raises(SinkRefusedError) as caught:
        SINKS.find(kind).probe(settings_of(kind, aws, **keys), name="test")
    # Services that speak JSON get XML from moto here, without a code.
    assert ("access_key_id" if kind == "sns" else "credentials") in caught.value.hint
    assert "planted" not in f"{caught.value} {caught.value.__cause__!r}"
    [finding] = SINKS.find(kind).check_destinations(
        settings_of(kind, aws, **keys), [destination_of(kind, "orders")]
    )
    assert finding.severity is Severity.ERROR


def test_a_certificate_that_is_not_trusted(
    aws: Aws, secure: MotoServer, certificates: Path
) -> None:
    for keys in ({}, {"tls_ca": certificates / "other.crt"}):
        with pytest.raises(SinkRefusedError, match="certificate") as caught:
            SINKS.find("sqs").probe(
                settings_of("sqs", aws, endpoint_url=secure.url, **keys), name="test"
            )
        assert "tls_ca" in caught.value.hint
    missing = {"tls_ca": certificates / "none.crt"}
    with pytest.raises(SinkRefusedError, match=r"none\.crt cannot be read"):
        SINKS.find("sqs").probe(settings_of("sqs", aws, **missing), name="test")


def test_an_endpoint_that_is_no_address(aws: Aws) -> None:
    settings = settings_of("sqs", aws, endpoint_url="https://exa mple")
    with pytest.raises(SinkRefusedError) as caught:
        SINKS.find("sqs").probe(settings, name="test")
    assert "endpoint_url" in caught.value.hint


def test_tls(aws: Aws, certificates: Path) -> None:
    with MotoServer(certificate=certificates / "server.crt") as server:
        keys = {"endpoint_url": server.url, "tls_ca": certificates / "ca.crt"}
        SINKS.find("sqs").probe(settings_of("sqs", aws, **keys), name="test")


def test_a_role_is_assumed(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", aws.url)
    name = aws.unused()
    aws.queue(name)
    role = f"arn:aws:iam::{ACCOUNT}:role/cdc"
    with FaultyAws(aws.url) as service:
        keys = {"role_arn": role, "external_id": "planted", "endpoint_url": service.url}
        assert deliver("sqs", aws, documents(name, b"1"), **keys).messages == 1
        sent = service.requests[-1].headers
    assert "x-amz-security-token" in sent
    assert "an-access-key" not in sent["authorization"]
    assert len(aws.received(name)) == 1


def test_a_role_that_cannot_be_assumed(
    aws: Aws, secure: MotoServer, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", secure.url)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificates / "ca.crt"))
    keys = {"role_arn": f"arn:aws:iam::{ACCOUNT}:role/cdc"}
    with pytest.raises(SinkRefusedError, match="the role cannot be assumed") as caught:
        SINKS.find("sqs").probe(settings_of("sqs", aws, **keys), name="test")
    assert "sts:AssumeRole" in caught.value.hint


def test_the_default_chain_finds_credentials(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    name = aws.unused()
    aws.queue(name)
    without = {"access_key_id": "", "secret_access_key": "", "region": ""}
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    for variable in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    probe = SINKS.find("sqs").probe
    with pytest.raises(SinkError) as no_region:
        probe(settings_of("sqs", aws, **without), name="test")
    assert "region" in no_region.value.hint
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    with pytest.raises(SinkRefusedError) as no_credentials:
        probe(settings_of("sqs", aws, **without), name="test")
    assert "credentials of the environment" in no_credentials.value.hint
    with pytest.raises(SinkRefusedError, match="nobody"):
        probe(settings_of("sqs", aws, **without, profile="nobody"), name="test")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "an-access-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted")
    assert deliver("sqs", aws, documents(name, b"1"), **without).messages == 1
