"""The sink `pubsub` against Google's test server: what arrives, logins, TLS, and `check`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.errors import SinkError, SinkRefusedError, SinkUnreachableError
from tailrace.finding import Severity
from tailrace.position import ORIGIN
from tailrace.sinks.contract import Lane
from tailrace.sinks.outcome import Verdict
from tailrace.sinks.retry import Retry
from tests.integration.pubsub.opening import SINK, deliver, keyed, opened, settings_of
from tests.pubsub import PROJECT, PubSubServer, Topics
from tests.unit.sinks.rows import message_id, payload, rows, with_column, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"


def test_attributes_and_ordering_keys(pubsub: PubSubServer, topics: Topics) -> None:
    topic = topics.create(topics.unused())
    odd, long = "žluť 1".encode(), b"x" * 1025
    keys = [b"42", odd, None, b"", b"\xff", long]
    batch = with_column(rows(range(6), destination=topic.encode()), "key", keys)
    with opened(pubsub) as sink:
        assert deliver(sink, batch).messages == 6
    found = {each.data: each for each in topics.received(topic)}
    messages = [found[payload(number)] for number in range(6)]
    assert dict(messages[0].attributes) == {
        "id": message_id(0).decode(),
        "key": "42",
        "destination": topic,
        "position": "00000000016b3748-0",
    }
    assert [each.attributes.get("key") for each in messages[1:4]] == ["žluť 1", None, ""]
    ordering = [each.ordering_key for each in messages]
    assert ordering[:3] == ["42", "žluť 1", "table-0000000000000001"]
    assert [len(each) for each in ordering[3:]] == [32] * 3
    assert len(set(ordering)) == 6


def test_without_ordering_a_request_has_messages_of_many_keys(
    pubsub: PubSubServer, topics: Topics
) -> None:
    topic = topics.create(topics.unused())
    with opened(pubsub, ordering=False) as sink:
        assert deliver(sink, keyed(topic, "abcab")).messages == 5
    found = topics.received(topic)
    assert [each.data for each in found] == [payload(number) for number in range(5)]
    assert {each.ordering_key for each in found} == {""}


def test_a_topic_by_its_path(pubsub: PubSubServer, topics: Topics) -> None:
    topic = topics.create(topics.unused())
    path = f"projects/{PROJECT}/topics/{topic}"
    with opened(pubsub, project="another") as sink:
        assert deliver(sink, keyed(path, "a")).messages == 1
    [found] = topics.received(topic)
    assert found.attributes["destination"] == path


def test_the_largest_request(pubsub: PubSubServer, topics: Topics) -> None:
    """A thousand messages with long keys are one request, which the server accepts."""
    topic = topics.create(topics.unused())
    batch = with_column(rows(range(1000), destination=topic.encode()), "key", [b"k" * 1000] * 1000)
    with opened(pubsub, batch_rows=1000) as sink:
        assert deliver(sink, batch).messages == 1000
    assert [each.data for each in topics.received(topic)] == [payload(n) for n in range(1000)]


@pytest.mark.parametrize("destination", [b"_orders", b"it", b"google", b"a b", b"\xff\xff\xff"])
def test_an_invalid_destination_is_refused(destination: bytes, pubsub: PubSubServer) -> None:
    with opened(pubsub) as sink:
        outcome = sink.inspect(rows(range(2), destination=destination))
    assert set(outcome) == {0, 1}
    assert outcome[0].verdict is Verdict.REFUSED
    assert "route" in outcome[0].hint


def test_a_missing_topic_is_named_with_its_fix(pubsub: PubSubServer) -> None:
    with (
        opened(pubsub) as sink,
        pytest.raises(SinkRefusedError, match=r"missing-orders.* NOT_FOUND") as caught,
    ):
        deliver(sink, keyed("missing-orders", "a"))
    create = f"gcloud pubsub topics create missing-orders --project={PROJECT}"
    assert create in caught.value.hint


def test_check(pubsub: PubSubServer, topics: Topics) -> None:
    settings = settings_of(pubsub)
    assert [each.severity for each in SINK.check(settings)] == [Severity.OK]
    topic = topics.create(topics.unused())
    found = list(SINK.check_destinations(settings, [topic, "missing-orders", topic, "_x"]))
    assert [each.severity for each in found] == [Severity.ERROR, Severity.OK, Severity.ERROR]
    assert "_x" in found[0].finding
    assert topic in found[1].finding
    assert f"topic projects/{PROJECT}/topics/missing-orders" in found[2].finding
    assert "gcloud pubsub topics create missing-orders" in found[2].fix


def test_check_without_the_permission_to_look(pubsub: PubSubServer) -> None:
    denied = {"code": 7, "message": "User not authorized"}
    pubsub.fail({"method": "GetTopic", **denied}, {"method": "ListTopics", **denied})
    SINK.probe(settings_of(pubsub), name="test")
    [finding] = SINK.check_destinations(settings_of(pubsub), ["orders"])
    assert finding.severity is Severity.INFO
    assert "pubsub.topics.get" in finding.fix


def test_a_server_that_is_down_and_starts(pubsub_available: None) -> None:
    server = PubSubServer()
    batch = keyed("orders", "ab")
    sink = SINK.open(settings_of(server), Lane(pipeline="test", retry=Retry(attempts=2, first_s=0)))
    try:
        sink.open(ORIGIN)
        write(sink, batch)
        with pytest.raises(SinkUnreachableError, match="UNAVAILABLE"):
            sink.flush()
        with pytest.raises(SinkUnreachableError) as caught:
            SINK.probe(settings_of(server), name="test")
        assert "endpoint_url" in caught.value.hint
        server.start()
        topics = Topics(server)
        topics.create("orders")
        sink.open(ORIGIN)
        write(sink, batch)
        assert sink.flush().messages == 2
        assert len(topics.received("orders")) == 2
        topics.close()
    finally:
        sink.close()
        server.destroy()


@pytest.fixture(scope="module")
def secure(pubsub_available: None, certificates: Path) -> Iterator[PubSubServer]:
    """A server with TLS."""
    with PubSubServer(certificate=certificates / "server.crt") as server:
        yield server


@pytest.fixture
def key_file(certificates: Path, tmp_path: Path) -> Path:
    """A key of a service account. Its tokens are signed here, so no other server is asked."""
    path = tmp_path / "key.json"
    path.write_text(
        json.dumps({
            "type": "service_account",
            "client_email": "cdc@project.iam.gserviceaccount.com",
            "private_key": (certificates / "ca.key").read_text(),
            "token_uri": "https://127.0.0.1:1/token",
        })
    )  # fmt: skip
    return path


@pytest.mark.parametrize("default", [False, True], ids=["file", "default"])
def test_tls_and_credentials(
    secure: PubSubServer,
    certificates: Path,
    key_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    default: bool,
) -> None:
    """A service account, by `credentials_file` or as the default of the environment."""
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "127.0.0.1:1")
    if default:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key_file))
    keys: dict[str, Any] = {} if default else {"credentials_file": key_file}
    url = f"https://localhost:{secure.tls_port}"
    authority = certificates / "ca.crt"
    topics = Topics(secure)
    topic = topics.create(topics.unused())
    with opened(secure, endpoint_url=url, tls_ca=authority, **keys) as sink:
        assert deliver(sink, keyed(topic, "ab")).messages == 2
    assert len(topics.received(topic)) == 2
    topics.close()


def test_a_certificate_that_is_not_trusted(
    secure: PubSubServer, certificates: Path, key_file: Path
) -> None:
    url = f"https://localhost:{secure.tls_port}"
    for authority in (None, certificates / "other.crt"):
        keys: dict[str, Any] = {"endpoint_url": url, "credentials_file": key_file}
        keys["tls_ca"] = authority
        with pytest.raises(SinkRefusedError, match=UNTRUSTED) as caught:
            SINK.probe(settings_of(secure, **keys), name="test")
        assert "tls_ca" in caught.value.hint
        with opened(secure, **keys) as sink, pytest.raises(SinkRefusedError, match=UNTRUSTED):
            deliver(sink, keyed("orders", "a"))


def test_files_that_cannot_be_read(
    secure: PubSubServer, certificates: Path, tmp_path: Path
) -> None:
    url = f"https://localhost:{secure.tls_port}"
    missing = {"credentials_file": tmp_path / "none.json"}
    with pytest.raises(SinkRefusedError, match=r"none\.json cannot be read"):
        SINK.probe(settings_of(secure, endpoint_url=url, **missing), name="test")
    other = {"credentials_file": certificates / "ca.crt"}
    with pytest.raises(SinkRefusedError, match="Expecting value") as caught:
        SINK.probe(settings_of(secure, endpoint_url=url, **other), name="test")
    assert "credentials_file" in caught.value.hint


def test_no_default_credentials(secure: PubSubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", "/nowhere")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    settings = settings_of(secure, endpoint_url=f"https://localhost:{secure.tls_port}")
    with pytest.raises(SinkError, match="default credentials") as caught:
        SINK.probe(settings, name="test")
    assert "Application Default Credentials" in caught.value.hint


FORKING = """
import os, sys
from tailrace.sinks.pubsub import sink, sink_type
from tailrace.position import ORIGIN
from tailrace.sinks.contract import Lane
from tests.integration.pubsub.opening import SINK, deliver, keyed
settings = SINK.settings.model_validate({"type": "pubsub", "topic": "x", **%r})
for worker in range(2):
    if not (pid := os.fork()):
        opened = SINK.open(settings, Lane(pipeline="test"))
        opened.open(ORIGIN)
        accepted = deliver(opened, keyed(%r, "ab")).messages
        opened.close()
        os._exit(accepted)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
"""


def test_forked_workers_publish(pubsub: PubSubServer, topics: Topics) -> None:
    """As Spark's Python workers are: the sink is imported before the fork, and opened after it."""
    topic = topics.create(topics.unused())
    program = FORKING % (pubsub.keys, topic)
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(topics.received(topic)) == 4
