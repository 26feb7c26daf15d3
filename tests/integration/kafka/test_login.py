"""Every login method against a real broker; wrong credentials are refused with a reason."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from tailrace.errors import SinkError, SinkRefusedError
from tailrace.position import ORIGIN
from tailrace.testing import EmbeddedKafka
from tests.integration.kafka.reading import Bench
from tests.unit.sinks.rows import position, write
from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.long

MECHANISMS = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
MODULES = "org.apache.kafka.common.security"
PLAIN = f'{MODULES}.plain.PlainLoginModule required user_tail="race" user_few="few";'
SCRAM = f"{MODULES}.scram.ScramLoginModule required;"
KINDS = {
    "topic": ResourceType.TOPIC,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
    "group": ResourceType.GROUP,
}


@pytest.fixture(scope="module")
def guarded(certificates: Path, kafka_available: None) -> Iterator[EmbeddedKafka]:
    """A broker with four listeners, an authorizer and one user without rights."""
    lines = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": f"{certificates}/server.pem",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": f"{certificates}/ca.crt",
        "listener.name.ssl.ssl.client.auth": "required",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:tail;User:CN=tail",
    }
    for listener in ("sasl_plaintext", "sasl_ssl"):
        lines |= {
            f"listener.name.{listener}.sasl.enabled.mechanisms": MECHANISMS,
            f"listener.name.{listener}.plain.sasl.jaas.config": PLAIN,
            f"listener.name.{listener}.scram-sha-256.sasl.jaas.config": SCRAM,
            f"listener.name.{listener}.scram-sha-512.sasl.jaas.config": SCRAM,
        }
    with EmbeddedKafka(
        config="".join(f"{key}={value}\n" for key, value in lines.items()),
        listeners=("SASL_PLAINTEXT", "SASL_SSL", "SSL"),
        scram={"tail": "race"},
    ) as server:
        yield server


def delivered(server: EmbeddedKafka, listener: str, **given: Any) -> int:
    """Deliver ten messages with these settings; the number delivered."""
    bench = Bench(server.bootstrap_of(listener), f"t{uuid.uuid4().hex[:8]}")
    with bench.opened(**given) as sink:
        write(sink, bench.rows(range(10)))
        return sink.flush().messages


def refusal(server: EmbeddedKafka, listener: str, **given: Any) -> SinkError:
    with pytest.raises(SinkRefusedError) as caught:
        delivered(server, listener, **given)
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("mechanism", MECHANISMS.split(","))
def test_user_and_password(guarded: EmbeddedKafka, mechanism: str) -> None:
    login = {"user": "tail", "mechanism": mechanism}
    assert delivered(guarded, "SASL_PLAINTEXT", password="race", **login) == 10
    assert delivered(guarded, "SASL_PLAINTEXT", password="race", transactional=True, **login) == 10
    wrong = str(refusal(guarded, "SASL_PLAINTEXT", password="s3cret", **login))
    assert "uthentication failed" in wrong
    assert "s3cret" not in wrong


def test_tls(guarded: EmbeddedKafka, certificates: Path) -> None:
    login = {"user": "tail", "password": "race"}
    ca = certificates / "ca.crt"
    assert delivered(guarded, "SASL_SSL", tls_ca=ca, **login) == 10
    wrong = refusal(guarded, "SASL_SSL", tls_ca=certificates / "other.crt", **login)
    assert "certificate" in str(wrong)
    assert "librdkafka refuses" in str(refusal(guarded, "SSL", tls_ca=certificates / "none.crt"))


def test_mutual_tls(guarded: EmbeddedKafka, certificates: Path) -> None:
    own = {
        "tls_ca": certificates / "ca.crt",
        "tls_certificate": certificates / "client.crt",
        "tls_key": certificates / "client.key",
    }
    assert delivered(guarded, "SSL", **own) == 10
    refusal(guarded, "SSL", tls_ca=certificates / "ca.crt")


FEW = {"user": "few", "password": "few", "mechanism": "PLAIN"}


def test_missing_rights_are_named(guarded: EmbeddedKafka) -> None:
    assert "uthorization failed" in str(refusal(guarded, "SASL_PLAINTEXT", **FEW))
    assert "uthorization failed" in str(
        refusal(guarded, "SASL_PLAINTEXT", transactional=True, **FEW)
    )


@pytest.mark.parametrize("transactional", [False, True])
def test_the_operations_that_the_guide_lists_are_sufficient(
    guarded: EmbeddedKafka, transactional: bool
) -> None:
    name = f"shop{transactional}"
    allow(guarded, "topic", name, "CREATE", "DESCRIBE", "WRITE")
    if transactional:
        allow(guarded, "topic", f"tailrace-positions-{name}", "CREATE", "DESCRIBE", "WRITE", "READ")
        allow(guarded, "transactional-id", f"tailrace-{name}-", "DESCRIBE", "WRITE")
    bench = Bench(guarded.bootstrap_of("SASL_PLAINTEXT"), name)
    for start in (0, 10):
        after = position(start - 1) if start else ORIGIN
        with bench.opened(after, transactional=transactional, **FEW) as sink:
            write(sink, bench.rows(range(start, start + 10)))
            sink.flush()
    assert Bench(guarded.bootstrap, name).numbers() == list(range(20))


def allow(server: EmbeddedKafka, kind: str, prefix: str, *operations: str) -> None:
    """Grant the user `few` operations on all names with a prefix."""
    bindings = [
        AclBinding(
            KINDS[kind],
            prefix,
            ResourcePatternType.PREFIXED,
            "User:few",
            "*",
            AclOperation[operation],
            AclPermissionType.ALLOW,
        )
        for operation in operations
    ]
    admin = Bench(server.bootstrap, "").admin()
    for future in admin.create_acls(bindings).values():
        future.result(LONG_S)
