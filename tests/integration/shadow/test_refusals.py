"""Topics that Kafka refuses: each stops by itself, and resumes where it stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)
from structlog.testing import capture_logs

from tailrace.position import ORIGIN
from tailrace.shadow import refusals
from tailrace.testing import EmbeddedKafka
from tests.integration.shadow.bench import Bench, copy_request, deliver
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.sinks.contract import Receipt
    from tests.fix_postgres import Database

LOGIN = {"user": "few", "password": "few", "mechanism": "PLAIN"}
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.fixture
def other(bench: Bench) -> Iterator[Bench]:
    """A second topic of the same database and pipeline."""
    created = Bench(bench.database, bench.bootstrap, f"{bench.topic}-other")
    yield created
    created.close()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused topic is tried again with its next record."""
    monkeypatch.setattr(refusals, "RETRY_S", 0.0)


def set_limit(bench: Bench, max_message_bytes: int) -> None:
    """Set the topic's own limit in Kafka."""
    entry = ConfigEntry(
        "max.message.bytes", str(max_message_bytes), incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.TOPIC, bench.topic, incremental_configs=[entry])
    admin = bench.admin()
    admin.incremental_alter_configs([resource])[resource].result(LONG_S)


def produce_large(bench: Bench, size: int) -> None:
    # Random text: Kafka compares the compressed size.
    bench.database.query(
        f"SELECT kafka.produce('{bench.topic}', 'large', (SELECT string_agg(md5(n::text), '') "
        f"FROM generate_series(1, {size // 32}) n), "
        "\"timestamp\" => '2026-11-15 12:34:56.789Z')"
    )


def refused(receipt: Receipt) -> dict[str, str]:
    return {each.destination: each.code for each in receipt.refusals}


def test_a_record_that_is_too_large_stops_its_topic_only(bench: Bench, other: Bench) -> None:
    """GIVEN a topic of Kafka with a small limit WHEN a record is larger THEN the other topic is
    copied, the topic is refused with its reason, and after the limit is raised it resumes with
    every record."""
    bench.create_topic()
    other.create_topic()
    bench.create_kafka_topic()
    set_limit(bench, 20_000)
    bench.produce(5)
    produce_large(bench, 100_000)
    bench.produce(5)
    other.produce(10)
    sink = bench.sink()
    with capture_logs() as events:
        receipt = deliver(sink, bench.stream())
    assert refused(receipt) == {bench.topic: "POISONED"}
    assert "max.message.bytes is 20000" in receipt.refusals[0].reason
    assert receipt.messages == 10
    assert other.kafka_records() == other.broker_records()
    assert bench.kafka_records() == []
    assert [each["topic"] for each in events if each["event"] == "shadow.topic_refused"] == [
        bench.topic
    ]
    bench.produce(3)
    other.produce(3)
    receipt = deliver(sink, bench.stream(10))
    assert refused(receipt) == {bench.topic: "POISONED"}
    assert other.kafka_records() == other.broker_records()
    assert not bench.verify().safe

    set_limit(bench, 1_000_000)
    bench.produce(1)

    def copied() -> Receipt | None:
        # Kafka applies the new limit a moment after its answer.
        receipt = deliver(sink, bench.stream(14))
        return None if receipt.refusals else receipt

    with capture_logs() as events:
        assert wait_for(copied, "the new limit").messages == 15
    assert bench.kafka_records() == bench.broker_records()
    assert other.kafka_records() == other.broker_records()
    assert "shadow.topic_resumed" in [each["event"] for each in events]
    assert bench.verify().safe


def test_a_refusal_outlives_its_process(bench: Bench, other: Bench) -> None:
    """GIVEN a refused topic WHEN another process opens the sink THEN it knows the refusal, and a
    copy request tries the topic at once."""
    bench.create_topic(partitions=2)
    other.create_topic()
    bench.create_kafka_topic(partitions=3)
    bench.produce(4)
    other.produce(4)
    first = deliver(bench.sink(), bench.stream())
    assert refused(first) == {bench.topic: "SINK_REFUSED"}
    assert "3 partitions in Kafka and 2 in the broker" in first.refusals[0].reason
    other.produce(1)
    second = bench.sink()
    only_other = bench.stream(4)
    receipt = deliver(second, only_other)
    assert receipt.refusals == first.refusals

    grow(bench, 3)
    [(topic_id,)] = bench.database.query(
        f"SELECT id FROM kafka.topics WHERE name = '{bench.topic}'"
    )
    receipt = deliver(second, copy_request((topic_id, 0, 4)))
    assert (receipt.messages, receipt.refusals) == (4, ())
    assert bench.kafka_records() == bench.broker_records()
    assert deliver(bench.sink(), bench.stream()).refusals == ()
    assert bench.verify().safe


def grow(bench: Bench, partitions: int) -> None:
    bench.database.query(
        f"WITH grown AS (UPDATE kafka.topics SET partitions = {partitions} "
        f"WHERE name = '{bench.topic}' RETURNING id) "
        f"INSERT INTO kafka.partitions SELECT id, {partitions - 1} FROM grown RETURNING 1"
    )


def test_a_refused_topic_waits_before_it_is_tried_again(
    bench: Bench, other: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIVEN a refused topic WHEN its records come within the minute THEN it is not tried, and its
    records are neither delivered nor counted as duplicates."""
    monkeypatch.setattr(refusals, "RETRY_S", 3600.0)
    bench.create_topic()
    other.create_topic()
    bench.create_kafka_topic(partitions=2)
    bench.produce(3)
    sink = bench.sink()
    assert refused(deliver(sink, bench.stream())) == {bench.topic: "SINK_REFUSED"}
    bench.produce(3)
    other.produce(2)
    with capture_logs() as events:
        receipt = deliver(sink, bench.stream())
    assert (receipt.messages, receipt.duplicates) == (2, 0)
    assert refused(receipt) == {bench.topic: "SINK_REFUSED"}
    assert [each["event"] for each in events] == ["kafka.topic_created"]


@pytest.mark.parametrize("action", ["off", "drop"])
def test_a_topic_that_is_no_longer_copied_is_not_refused(bench: Bench, action: str) -> None:
    bench.create_topic()
    bench.create_kafka_topic(partitions=2)
    bench.produce(3)
    sink = bench.sink()
    assert refused(deliver(sink, bench.stream())) == {bench.topic: "SINK_REFUSED"}
    bench.database.query(
        f"INSERT INTO kafka.shadow (topic_id, enabled) SELECT id, false FROM kafka.topics "
        f"WHERE name = '{bench.topic}' RETURNING 1"
        if action == "off"
        else "WITH gone AS (DELETE FROM kafka.messages) DELETE FROM kafka.topics "
        f"WHERE name = '{bench.topic}' RETURNING 1"
    )
    with capture_logs() as events:
        sink.open(ORIGIN)
        assert sink.flush().refusals == ()
    assert events == []
    other = bench.sink()
    other.open(ORIGIN)
    assert other.flush().refusals == ()


@pytest.fixture
def guarded(database: Database, kafka_available: None) -> Iterator[tuple[Bench, str]]:
    """A topic, and a Kafka with the user `few`, whose rights the test grants."""
    lines = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{MODULE} required user_few="few";',
    }
    config = "".join(f"{key}={value}\n" for key, value in lines.items())
    with EmbeddedKafka(config=config, listeners=("SASL_PLAINTEXT",)) as server:
        bench = Bench(database, server.bootstrap, "orders")
        bench.install()
        yield bench, server.bootstrap_of("SASL_PLAINTEXT")
        bench.close()


def acl(kind: ResourceType, name: str, operation: str, permission: str = "ALLOW") -> AclBinding:
    return AclBinding(
        kind, name, ResourcePatternType.LITERAL, "User:few", "*",
        AclOperation[operation], AclPermissionType[permission],
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_topic_without_rights_stops_by_itself(guarded: tuple[Bench, str]) -> None:
    """GIVEN a user who may write to one topic of two WHEN both are copied THEN one is refused and
    the other is copied; WHEN the right is granted THEN the first is complete as well."""
    bench, address = guarded
    other = Bench(bench.database, bench.bootstrap, "payments")
    for each in (bench, other):
        each.create_topic()
        each.create_kafka_topic()
        each.produce(10)
    kinds = (ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID, ResourceType.GROUP)
    everything = [acl(kind, "*", "ALL") for kind in kinds]
    denied = acl(ResourceType.TOPIC, "orders", "WRITE", "DENY")
    admin = bench.admin()
    for future in admin.create_acls([*everything, denied]).values():
        future.result(LONG_S)
    sink = bench.sink(bootstrap=address, timeout_s=20, **LOGIN)
    receipt = deliver(sink, bench.stream())
    assert refused(receipt) == {"orders": "SINK_REFUSED"}
    assert "uthorization failed" in receipt.refusals[0].reason
    assert other.kafka_records() == other.broker_records()
    assert bench.kafka_records() == []
    for deleted in admin.delete_acls([denied_filter()]).values():
        assert len(deleted.result(LONG_S)) == 1
    bench.produce(1)
    wait_for(lambda: not deliver(sink, bench.stream(10)).refusals)
    assert bench.kafka_records() == bench.broker_records()


def denied_filter() -> AclBindingFilter:
    return AclBindingFilter(
        ResourceType.TOPIC, "orders", ResourcePatternType.LITERAL, "User:few", "*",
        AclOperation.WRITE, AclPermissionType.DENY,
    )  # fmt: skip
