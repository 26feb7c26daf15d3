"""ACLs, request by request. Kafka with the same rules is the oracle."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
)
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.cimpl import NewTopic

from tailrace.testing.kafka import EmbeddedKafka
from tests.fix_broker import BrokerProcess
from tests.fix_postgres import Database
from tests.integration.broker.clients import Login
from tests.integration.broker.raw import SOON, Raw, batch, fetch, produce
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.testing import EmbeddedPostgres

OWN, OTHER, MISSING = "orders.own", "other", "orders.missing"
Rules = tuple[tuple[str, str, str], ...]
"""Resource, pattern, operation."""
CASES: dict[str, Rules] = {
    "nothing": (),
    **{
        f"topic {operation}": (("topic", OWN, operation),)
        for operation in (
            "read", "write", "create", "delete", "alter", "describe", "describe_configs",
            "alter_configs", "all",
        )
    },
    "prefix": (("topic", "orders.*", "read"), ("topic", "orders.*", "write")),
    "prefix, create": (("topic", "orders.*", "create"), ("topic", "orders.*", "describe")),
    "any topic": (("topic", "*", "all"),),
    "group read": (("group", "billing", "read"),),
    "group describe": (("group", "billing", "describe"),),
    "group delete": (("group", "billing", "delete"),),
    "any group": (("group", "*", "all"),),
    "consumer": (("topic", OWN, "read"), ("group", "bill*", "read")),
    "cluster create": (("cluster", "*", "create"),),
    "cluster describe": (("cluster", "*", "describe"),),
    "cluster idempotent": (("cluster", "*", "idempotent_write"),),
    "everything": (("topic", "*", "all"), ("group", "*", "all"), ("cluster", "*", "all")),
}  # fmt: skip


class BrokerAcls:
    """`tailrace broker`, whose rules are rows."""

    def __init__(self, process: BrokerProcess) -> None:
        self._database = process.database
        self.port = process.port
        with process.access_changes():
            self._database.execute("DELETE FROM kafka.topics; DELETE FROM kafka.acls")
        for name in (OWN, OTHER):
            self._database.query("SELECT kafka.create_topic(%s)", name)

    def login(self, rules: Rules) -> Raw:
        """A connection of a user with exactly these rules."""
        self._database.execute("DELETE FROM kafka.acls; DELETE FROM kafka.consumer_offsets")
        for rule in rules:
            self._database.execute("INSERT INTO kafka.acls VALUES ('ann', %s, %s, %s)", *rule)
        raw = Raw(self.port)
        assert not raw.login("ann", "secret").error_code
        return raw


class KafkaAcls:
    """Kafka; rules are set by an administrator."""

    def __init__(self, server: EmbeddedKafka) -> None:
        self._admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
        self.port = int(server.bootstrap_of("SASL_PLAINTEXT").rpartition(":")[2])
        # The times of the records are of long ago.
        kept = {"retention.ms": "-1"}
        wanted = [NewTopic(name, 1, 1, config=kept) for name in (OWN, OTHER)]
        made = self._admin.create_topics(wanted)
        for each in made.values():
            each.result(LONG_S)

    def login(self, rules: Rules) -> Raw:
        groups: list[str] = [each for each in ("billing", "others") if each in self._groups()]
        if groups:
            for each in self._admin.delete_consumer_groups(groups).values():
                each.result(LONG_S)
        anything: Any = None
        everything = AclBindingFilter(
            ResourceType.ANY, anything, ResourcePatternType.ANY, anything, anything,
            AclOperation.ANY, AclPermissionType.ANY,
        )  # fmt: skip
        self._admin.delete_acls([everything])[everything].result(LONG_S)
        bindings = [_binding(*rule) for rule in rules]
        if bindings:
            for each in self._admin.create_acls(bindings).values():
                each.result(LONG_S)
        raw = Raw(self.port)
        assert not raw.login("ann", "secret").error_code
        return raw

    def _groups(self) -> set[str]:
        return {each.group_id for each in self._admin.list_consumer_groups().result(LONG_S).valid}


def _binding(resource: str, pattern: str, operation: str) -> AclBinding:
    kind = {"topic": "TOPIC", "group": "GROUP", "cluster": "BROKER"}[resource]
    name, how = pattern, ResourcePatternType.LITERAL
    if resource == "cluster":
        name = "kafka-cluster"
    elif pattern.endswith("*") and pattern != "*":
        name, how = pattern[:-1], ResourcePatternType.PREFIXED
    return AclBinding(
        ResourceType[kind], name, how, "User:ann", "*", AclOperation[operation.upper()],
        AclPermissionType.ALLOW,
    )  # fmt: skip


@pytest.fixture(scope="module")
def process(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    database = Database(name=postgres.create_database("acl"), server=postgres)
    made = BrokerProcess(database, tmp_path_factory.mktemp("acl"), "--no-auto-create")
    made.init()
    made.account("user", "add", "ann", password="secret")
    made.account("user", "add", "root", "--superuser", password="secret")
    made.start()
    try:
        yield made
    finally:
        made.stop()
        postgres.drop_database(database.name)
    assert "broker.connection_failed" not in made.output


@pytest.fixture(scope="module")
def kafka(kafka_available: None) -> Iterator[KafkaAcls]:
    config = r"""
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
sasl.enabled.mechanisms=SCRAM-SHA-256
listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config=\
    org.apache.kafka.common.security.scram.ScramLoginModule required;
"""
    with EmbeddedKafka(
        config=config, listeners=("SASL_PLAINTEXT",), scram={"ann": "secret"}
    ) as server:
        yield KafkaAcls(server)


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_kafka_denies_the_same_requests(
    process: BrokerProcess, kafka: KafkaAcls, case: str
) -> None:
    broker, rules = BrokerAcls(process), CASES[case]
    # For a moment both sides may still apply the previous rules.
    for _ in range(10):
        with broker.login(rules) as raw:
            found = answers(raw)
        with kafka.login(rules) as raw:
            expected = answers(raw)
        if found == expected:
            break
    assert found == expected


def answers(raw: Raw) -> dict[str, Any]:
    """The error codes that a user gets, for every request."""
    found: dict[str, Any] = {}
    for name in (OWN, OTHER, MISSING):
        found |= {f"{what} {name}": code for what, code in _topic(raw, name).items()}
    for name in ("billing", "others"):
        found |= {f"{what} {name}": code for what, code in _group(raw, name).items()}
    listed = raw.ask(3, 9, {"topics": None, "allow_auto_topic_creation": False}).topics
    found["topics"] = sorted(topic.name for topic in listed if not topic.is_internal)
    groups = raw.ask(16, 4, {"states_filter": ()})
    found["groups"] = groups.error_code.name, {group.group_id for group in groups.groups}
    made = raw.ask(22, 4, {"transactional_id": None, "transaction_timeout": SOON})
    found["idempotent"] = made.error_code.name
    asked = {"resource_type": 4, "resource_name": "1", "configuration_keys": ("x",)}
    found["broker configs"] = raw.ask(32, 4, {"resources": [asked]}).results[0].error_code.name
    return found


def _topic(raw: Raw, name: str) -> dict[str, str]:
    codes: dict[str, Any] = {}
    asked: dict[str, Any] = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
    codes["metadata"] = raw.ask(3, 9, asked).topics[0]
    codes["produce"] = raw.ask(0, 9, produce(name, batch(b"1"))).responses[0].partition_responses[0]
    codes["fetch"] = raw.ask(1, 11, fetch(name)).responses[0].partitions[0]
    part: dict[str, Any] = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
    asked = {"replica_id": -1, "isolation_level": 0}
    asked |= {"topics": [{"name": name, "partitions": [part]}]}
    codes["offsets"] = raw.ask(2, 6, asked).topics[0].partitions[0]
    part = {"partition_index": 0, "offset": 0}
    asked = {"topics": [{"name": name, "partitions": [part]}], "timeout": timedelta(seconds=5)}
    codes["delete records"] = raw.ask(21, 2, asked).topics[0].partitions[0]
    wanted = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": []}
    asked = {"topics": [wanted | {"configs": []}], "validate_only": True}
    codes["create"] = raw.ask(19, 5, asked).topics[0]
    part = {"name": name, "count": 2, "assignments": None}
    asked = {"topics": [part], "timeout": timedelta(seconds=5), "validate_only": True}
    codes["grow"] = raw.ask(37, 3, asked).results[0]
    wanted = {"resource_type": 2, "resource_name": name, "configuration_keys": ("retention.ms",)}
    codes["configs"] = raw.ask(32, 4, {"resources": [wanted]}).results[0]
    change = {"name": "retention.ms", "config_operation": 0, "value": "1000"}
    wanted = {"resource_type": 2, "resource_name": name, "configs": [change]}
    asked = {"resources": [wanted], "validate_only": True}
    codes["alter configs"] = raw.ask(44, 1, asked).responses[0]
    if name != OWN:
        # Not the existing topic: it would be deleted.
        name = MISSING
        asked = {"topic_names": (name,), "timeout": timedelta(seconds=5)}
        codes["delete"] = raw.ask(20, 5, asked).responses[0]
    return {what: found.error_code.name for what, found in codes.items()}


def _group(raw: Raw, name: str) -> dict[str, Any]:
    codes: dict[str, Any] = {}
    codes["find"] = raw.ask(10, 2, {"key": name, "key_type": 0})
    member: dict[str, Any] = {"group_id": name, "generation_id": 1, "member_id": "nobody"}
    asked: dict[str, Any] = {
        "session_timeout": timedelta(seconds=10),
        "rebalance_timeout": timedelta(seconds=10),
    }
    asked |= {"protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}]}
    codes["join"] = raw.ask(11, 7, member | asked)
    codes["sync"] = raw.ask(14, 4, member | {"assignments": []})
    codes["heartbeat"] = raw.ask(12, 4, member)
    codes["leave"] = raw.ask(13, 2, member)
    codes["describe"] = raw.ask(15, 5, {"groups": (name,), "include_authorized_operations": False})
    codes["describe"] = codes["describe"].groups[0]
    found = {what: each.error_code.name for what, each in codes.items()}
    part: Any = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    topics: list[dict[str, Any]]
    topics = [{"name": each, "partitions": [part]} for each in (OWN, OTHER, MISSING)]
    asked = {"generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}
    done = raw.ask(8, 8, {"group_id": name} | asked)
    found["commit"] = {topic.name: topic.partitions[0].error_code.name for topic in done.topics}
    topics = [{"name": each, "partition_indexes": (0,)} for each in (OWN, OTHER, MISSING)]
    held = raw.ask(9, 7, {"group_id": name, "topics": topics, "require_stable": False})
    found["committed"] = held.error_code.name
    for topic in held.topics:
        (part,) = topic.partitions
        found[f"committed {topic.name}"] = part.error_code.name, part.committed_offset
    held = raw.ask(9, 7, {"group_id": name, "topics": None, "require_stable": False})
    found["all committed"] = held.error_code.name, {topic.name for topic in held.topics}
    gone = raw.ask(42, 2, {"groups_names": (name,)}).results[0]
    found["delete"] = gone.error_code.name
    return found


def produced(producer: Producer, topic: str, value: bytes) -> Any:
    """The error of a message, or None. The client raises it if it knows it before it sends."""
    errors: list[Any] = []
    try:
        producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
    except KafkaException as error:
        return error.args[0]
    producer.flush(LONG_S)
    [only] = errors
    return only


@pytest.mark.parametrize("pattern", ["orders.*", "orders.own", "*"])
def test_an_allowed_client_is_served(process: BrokerProcess, pattern: str) -> None:
    BrokerAcls(process)
    group = f"g-{uuid.uuid4().hex[:8]}"
    allowed = ("--user", "ann", "--topic", pattern, "--group", "g-*", "--allow", "read,write")
    process.account("acl", "add", *allowed)
    settings = {"bootstrap.servers": f"127.0.0.1:{process.port}"}
    settings |= Login(user="ann", password="secret").librdkafka()
    producer = Producer(settings | {"enable.idempotence": "true"})
    errors = [produced(producer, name, b"1") for name in (OWN, OTHER)]
    consumer = Consumer(settings | {"group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([OWN])
    message = consumer.poll(LONG_S)
    assert message is not None
    assert message.value() == b"1"
    consumer.close()
    if pattern == "*":
        assert errors == [None, None]
    else:
        assert errors[0] is None
        assert errors[1].name() == "TOPIC_AUTHORIZATION_FAILED"
    process.account("acl", "remove", "--user", "ann", "--topic", pattern)
    process.account("acl", "remove", "--user", "ann", "--group", "g-*")
    assert process.account("acl", "list") == ""
    # The next request is denied on open connections, too.
    assert produced(producer, OWN, b"2").name() == "TOPIC_AUTHORIZATION_FAILED"


def test_automatic_creation_needs_permission(database: Database, tmp_path: Any) -> None:
    """A user without create does not create a topic, and cannot find out whether it exists."""
    made = BrokerProcess(database, tmp_path)
    made.init()
    made.account("user", "add", "ann", password="1")
    made.account("acl", "add", "--user", "ann", "--topic", "in.*", "--allow", "write")
    made.account("acl", "add", "--user", "ann", "--topic", "in.new*", "--allow", "create")
    made.start()
    database.query("SELECT kafka.create_topic('hidden')")
    with Raw(made.port) as raw:
        assert not raw.login("ann", "1").error_code
        names = ("in.new", "in.old", "hidden", "nowhere", "no name")
        asked = {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": True}
        codes = [topic.error_code.name for topic in raw.ask(3, 9, asked).topics]
    refused = "topic_authorization_failed"
    assert codes == ["none", refused, refused, refused, refused]
    assert database.query("SELECT name FROM kafka.topics ORDER BY 1") == [("hidden",), ("in.new",)]
    assert made.stop() == 0


def test_admin_tools_need_permission(process: BrokerProcess) -> None:
    BrokerAcls(process)
    settings = {"bootstrap.servers": f"127.0.0.1:{process.port}"}
    login = Login(user="ann", password="secret").librdkafka()
    admin = AdminClient({**settings, **login})
    process.account("acl", "add", "--user", "ann", "--topic", "a-*", "--allow", "create")
    made = admin.create_topics([NewTopic("a-1", 1, 1), NewTopic("b-1", 1, 1)])
    made["a-1"].result(LONG_S)
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        made["b-1"].result(LONG_S)
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        admin.delete_topics(["a-1"])["a-1"].result(LONG_S)
    root = AdminClient({**settings, **Login(user="root", password="secret").librdkafka()})
    root.delete_topics(["a-1"])["a-1"].result(LONG_S)
    process.account("acl", "remove", "--user", "ann", "--topic", "a-*")
