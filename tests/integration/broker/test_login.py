"""Logins: every client with every mechanism, and every login that is refused."""

from __future__ import annotations

import os
import re
import shutil
import signal
import ssl
import subprocess
import uuid
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from tests.command import run
from tests.fix_broker import BrokerProcess
from tests.fix_certificates import signed
from tests.fix_postgres import Database
from tests.integration.broker.clients import Java, Login
from tests.integration.broker.clients.java import JavaError, no_java
from tests.integration.broker.raw import ClosedError, Raw, fetch
from tests.integration.broker.samples import sample_records
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.testing import EmbeddedPostgres
    from tests.integration.broker.clients import Client

PASSWORD = "correct horse, battery=staple ü"
LOGINS = [
    ("SCRAM-SHA-256", False),
    pytest.param("SCRAM-SHA-512", False, marks=pytest.mark.long),
    pytest.param("SCRAM-SHA-256", True, marks=pytest.mark.long),
    ("SCRAM-SHA-512", True),
    ("PLAIN", True),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Path:
    """Certificates that a test may replace."""
    copied = tmp_path_factory.mktemp("tls") / "certificates"
    shutil.copytree(certificates, copied)
    return copied


@pytest.fixture(scope="module")
def tls_broker(postgres: EmbeddedPostgres, folder: Path) -> Iterator[BrokerProcess]:
    yield from serving(postgres, folder, tls=True)


@pytest.fixture(scope="module")
def clear_broker(postgres: EmbeddedPostgres, folder: Path) -> Iterator[BrokerProcess]:
    yield from serving(postgres, folder, tls=False)


def serving(postgres: EmbeddedPostgres, folder: Path, *, tls: bool) -> Iterator[BrokerProcess]:
    name = f"login_{uuid.uuid4().hex[:8]}"
    database = Database(name=postgres.create_database(name), server=postgres)
    files = ("--tls-cert", str(folder / "server.crt"), "--tls-key", str(folder / "server.key"))
    (place := folder.parent / name).mkdir()
    process = BrokerProcess(database, place, *(files if tls else ()))
    process.init()
    process.account("user", "add", "ann", "--superuser", password=PASSWORD)
    process.start()
    try:
        yield process
    finally:
        code = process.stop()
        postgres.drop_database(database.name)
    assert code == 0, process.output[-3000:]
    assert "broker.connection_failed" not in process.output
    assert PASSWORD not in process.output


def topic(broker: BrokerProcess) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    broker.database.query('SELECT kafka.create_topic(%s, 1, \'{"retention.ms": "-1"}\')', name)
    return name


@pytest.mark.parametrize(("mechanism", "tls"), LOGINS)
def test_every_client_logs_in(
    request: pytest.FixtureRequest, kind: type[Client], folder: Path, mechanism: str, tls: bool
) -> None:
    broker = request.getfixturevalue("tls_broker" if tls else "clear_broker")
    authority = folder / "ca.crt" if tls else None
    login = Login(user="ann", password=PASSWORD, mechanism=mechanism, authority=authority)
    client, name = kind(broker.bootstrap, login), topic(broker)
    client.produce(name, sample_records(20))
    assert client.consume(name, 20) == sample_records(20)
    assert client.consume(name, 20, group=f"g-{name}") == sample_records(20)


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not on PATH")
@pytest.mark.parametrize(("mechanism", "tls"), LOGINS)
def test_kcat_logs_in(
    request: pytest.FixtureRequest, folder: Path, mechanism: str, tls: bool
) -> None:
    broker = request.getfixturevalue("tls_broker" if tls else "clear_broker")
    authority = folder / "ca.crt" if tls else None
    login = Login(user="ann", password=PASSWORD, mechanism=mechanism, authority=authority)
    settings = [f"-X{name}={value}" for name, value in login.librdkafka().items()]
    command = ["kcat", "-m", "120", "-b", broker.bootstrap, *settings, "-t", topic(broker)]
    subprocess.run([*command, "-P"], input=b"one\ntwo\n", timeout=LONG_S, check=True)
    done = subprocess.run(
        [*command, "-C", "-e", "-q"], timeout=LONG_S, check=True, capture_output=True
    )
    assert done.stdout == b"one\ntwo\n"


@pytest.mark.parametrize(("user", "password"), [("ann", "wrong"), ("nobody", PASSWORD)])
def test_librdkafka_reports_a_failed_login(
    clear_broker: BrokerProcess, user: str, password: str
) -> None:
    # It retries forever, and reports errors in a callback.
    seen: list[KafkaError] = []
    login = Login(user=user, password=password).librdkafka()
    settings: dict[str, Any] = {"bootstrap.servers": clear_broker.bootstrap} | login
    admin = AdminClient(settings | {"error_cb": seen.append})

    def reported() -> bool:
        admin.poll(0.1)
        return any(error.code() == KafkaError._AUTHENTICATION for error in seen)

    wait_for(reported, lambda: f"the error, not {seen}")


@pytest.mark.parametrize(("user", "password"), [("ann", "wrong"), ("nobody", PASSWORD)])
def test_java_reports_a_failed_login(clear_broker: BrokerProcess, user: str, password: str) -> None:
    if reason := no_java():
        pytest.skip(reason)
    client = Java(clear_broker.bootstrap, Login(user=user, password=password))
    with pytest.raises(JavaError, match=r"SaslAuthenticationException: authentication failed"):
        client.produce(topic(clear_broker), sample_records(1))


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
@pytest.mark.parametrize(
    ("user", "password"), [("ann", "wrong"), ("ann", ""), ("nobody", PASSWORD), ("ANN", PASSWORD)]
)
def test_wrong_passwords_and_unknown_users_look_the_same(
    tls_broker: BrokerProcess, folder: Path, user: str, password: str, mechanism: str
) -> None:
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    with Raw(tls_broker.port, tls=context) as raw:
        found = raw.login(user, password, mechanism)
        assert found.error_code.name == "sasl_authentication_failed"
        assert found.error_message == "authentication failed: invalid user name or password"
        assert raw.closed()


def test_salts_of_unknown_users_do_not_change(clear_broker: BrokerProcess) -> None:
    def salt(user: str) -> bytes:
        with Raw(clear_broker.port) as raw:
            raw.ask(17, 1, {"mechanism": "SCRAM-SHA-256"})
            first = raw.ask(36, 2, {"auth_bytes": f"n,,n={user},r=abc".encode()})
            found = re.fullmatch(rb"r=[^,]+,(s=[A-Za-z0-9+/]{32}),i=4096", first.auth_bytes)
            assert found is not None
            return found[1]

    salts = [salt("ann"), salt("bob"), salt("eve")]
    assert len(set(salts)) == 3
    clear_broker.stop()
    clear_broker.start()
    assert [salt("ann"), salt("bob"), salt("eve")] == salts


def test_plain_needs_tls(clear_broker: BrokerProcess) -> None:
    with Raw(clear_broker.port) as raw:
        found = raw.login("ann", PASSWORD, "PLAIN")
        assert found.error_code.name == "unsupported_sasl_mechanism"
        assert found.mechanisms == ("SCRAM-SHA-256", "SCRAM-SHA-512")
        assert raw.closed()


def test_tokens_outside_of_requests_are_refused(clear_broker: BrokerProcess) -> None:
    with Raw(clear_broker.port) as raw:
        found = raw.ask(17, 0, {"mechanism": "SCRAM-SHA-256"})
        assert found.error_code.name == "unsupported_version"
        assert raw.closed()


def test_requests_before_the_login_are_refused(clear_broker: BrokerProcess) -> None:
    with Raw(clear_broker.port) as raw:
        assert raw.ask(18, 3, {"client_software_name": "x", "client_software_version": "1"})
        raw.send(3, 9, {"topics": None})
        assert raw.closed()
    assert "Metadata request without a login" in clear_broker.output


def test_tokens_in_the_wrong_order_are_refused(clear_broker: BrokerProcess) -> None:
    with Raw(clear_broker.port) as raw:
        found = raw.ask(36, 2, {"auth_bytes": b"n,,n=ann,r=abc"})
        assert found.error_code.name == "illegal_sasl_state"
        assert raw.closed()
    with Raw(clear_broker.port) as raw:
        raw.ask(17, 1, {"mechanism": "SCRAM-SHA-256"})
        raw.ask(36, 2, {"auth_bytes": b"n,,n=ann,r=abc"})
        # A new handshake discards the exchange before it.
        raw.ask(17, 1, {"mechanism": "SCRAM-SHA-256"})
        raw.send(3, 9, {"topics": None})
        assert raw.closed()


def test_the_same_user_may_log_in_again(clear_broker: BrokerProcess) -> None:
    clear_broker.account("user", "add", "bob", "--superuser", password="bob's")
    with Raw(clear_broker.port) as raw:
        assert not raw.login("ann", PASSWORD).error_code
        assert not raw.login("ann", PASSWORD, "SCRAM-SHA-512").error_code
        assert not raw.ask(3, 9, {"topics": []}).topics
        assert raw.login("bob", "bob's").error_code.name == "sasl_authentication_failed"
        assert raw.closed()


def test_requests_before_the_login_are_small(clear_broker: BrokerProcess) -> None:
    with Raw(clear_broker.port) as raw:
        raw.link.sendall((64 * 1024 + 1).to_bytes(4, "big"))
        assert raw.closed()
    with Raw(clear_broker.port) as raw:
        raw.login("ann", PASSWORD)
        names = [{"name": "x" * 200 + str(number)} for number in range(400)]
        found = raw.ask(3, 9, {"topics": names, "allow_auto_topic_creation": False})
        assert len(found.topics) == 400


def test_removed_users_are_disconnected(clear_broker: BrokerProcess) -> None:
    clear_broker.account("user", "add", "carl", password="1")
    clear_broker.account("acl", "add", "--user", "carl", "--topic", "*", "--allow", "read")
    name = topic(clear_broker)
    with Raw(clear_broker.port) as carl, Raw(clear_broker.port) as ann:
        assert not carl.login("carl", "1").error_code
        assert not ann.login("ann", PASSWORD).error_code
        asked = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
        assert not carl.ask(3, 9, asked).topics[0].error_code
        # While a request waits for records.
        carl.send(1, 11, fetch(name, wait=timedelta(seconds=300)))
        clear_broker.account("user", "remove", "carl")
        assert carl.closed()
        assert ann.ask(3, 9, {"topics": []}).brokers
    with Raw(clear_broker.port) as carl:
        assert carl.login("carl", "1").error_code.name == "sasl_authentication_failed"
    # The rules were removed with the user: a new one of the same name has none.
    clear_broker.account("user", "add", "carl", password="2")
    assert clear_broker.account("acl", "list", "--user", "carl") == ""


def test_a_new_password_replaces_the_old_one(clear_broker: BrokerProcess) -> None:
    for password, old in (("one", "zero"), ("two", "one")):
        clear_broker.account("user", "add", "dora", password=password)
        wait_for(partial(_works, clear_broker, "dora", password), "the new one")
        assert not _works(clear_broker, "dora", old)


def _works(broker: BrokerProcess, user: str, password: str) -> bool:
    with Raw(broker.port) as raw:
        return not raw.login(user, password).error_code


def test_the_first_user_disconnects_anonymous_clients(database: Database, tmp_path: Path) -> None:
    broker = BrokerProcess(database, tmp_path)
    broker.init()
    broker.start()
    with Raw(broker.port) as before:
        assert before.ask(3, 9, {"topics": []}).brokers
        broker.account("user", "add", "ann", password="1")
        assert before.closed()
    with Raw(broker.port) as raw:
        raw.send(3, 9, {"topics": []})
        assert raw.closed()
    output = broker.account("user", "remove", "ann")
    assert "removed" in output
    wait_for(lambda: _open(broker), "anonymous access")
    assert broker.stop() == 0


def _open(broker: BrokerProcess) -> bool:
    with Raw(broker.port) as raw:
        try:
            return bool(raw.ask(3, 9, {"topics": []}).brokers)
        except ClosedError:
            return False


def test_passwords_are_not_stored_or_logged(clear_broker: BrokerProcess) -> None:
    clear_broker.account("user", "add", "erna", password="a-secret-of-erna")
    with Raw(clear_broker.port) as raw:
        assert not raw.login("erna", "a-secret-of-erna").error_code
    with Raw(clear_broker.port) as raw:
        assert raw.login("erna", "another-secret").error_code
    stored = "".join(
        str(clear_broker.database.query(f"SELECT to_jsonb(t)::text FROM kafka.{table} t"))
        for table in ("users", "credentials", "acls", "secrets")
    )
    for text in ("a-secret-of-erna", "another-secret"):
        assert text not in clear_broker.output
        assert text not in stored
        assert text.encode().hex() not in stored


def test_other_users_of_the_database_cannot_read_keys(clear_broker: BrokerProcess) -> None:
    role = f"reader_{uuid.uuid4().hex[:8]}"
    database = clear_broker.database
    database.execute(f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA kafka TO {role}")
    for table in ("users", "credentials", "acls", "secrets"):
        ((allowed,),) = database.query(
            "SELECT has_table_privilege(%s, %s, 'SELECT')", role, f"kafka.{table}"
        )
        assert not allowed
    database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_untrusted_certificates_are_refused(tls_broker: BrokerProcess, folder: Path) -> None:
    wrong = ssl.create_default_context(cafile=folder / "other.crt")
    with pytest.raises(ssl.SSLCertVerificationError):
        Raw(tls_broker.port, tls=wrong)
    old = ssl.create_default_context(cafile=folder / "ca.crt")
    old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with pytest.warns(DeprecationWarning, match=r"TLSv1_1"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, OSError)):
        Raw(tls_broker.port, tls=old)
    with Raw(tls_broker.port) as raw:
        raw.send(18, 0, {})
        # A TLS alert, or nothing.
        assert raw.link.recv(100)[:1] in (b"", b"\x15")
    assert _tls_works(tls_broker, folder)


def _tls_works(broker: BrokerProcess, folder: Path) -> str:
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    with Raw(broker.port, tls=context) as raw:
        assert not raw.login("ann", PASSWORD).error_code
        assert isinstance(raw.link, ssl.SSLSocket)
        found = raw.link.getpeercert()
        assert found is not None
        return str(found["serialNumber"])


def test_certificates_are_reloaded(tls_broker: BrokerProcess, folder: Path) -> None:
    before = _tls_works(tls_broker, folder)
    signed(folder, "server")
    tls_broker.signal(signal.SIGHUP)
    wait_for(lambda: _tls_works(tls_broker, folder) != before, "the new certificate")
    key = (folder / "server.key").read_text()
    (folder / "server.key").write_text("nonsense")
    tls_broker.signal(signal.SIGHUP)
    wait_for(lambda: "broker.certificate_reload_failed" in tls_broker.output, "the log line")
    assert _tls_works(tls_broker, folder)
    (folder / "server.key").write_text(key)


def test_client_certificates_are_required(
    database: Database, tmp_path: Path, certificates: Path
) -> None:
    files = {"cert": "server.crt", "key": "server.key", "client-ca": "ca.crt"}
    options = [f"--tls-{name}={certificates / file}" for name, file in files.items()]
    broker = BrokerProcess(database, tmp_path, *options)
    broker.init()
    broker.account("user", "add", "ann", password="1")
    broker.start()
    context = ssl.create_default_context(cafile=certificates / "ca.crt")
    with pytest.raises((OSError, ClosedError)), Raw(broker.port, tls=context) as raw:
        raw.login("ann", "1")
    context.load_cert_chain(certificates / "client.crt", certificates / "client.key")
    with Raw(broker.port, tls=context) as raw:
        raw.send(3, 9, {"topics": []})
        assert raw.closed()
    with Raw(broker.port, tls=context) as raw:
        assert not raw.login("ann", "1").error_code
    assert broker.stop() == 0


@pytest.mark.long
def test_other_addresses_need_tls_and_users(
    database: Database, tmp_path: Path, certificates: Path
) -> None:
    broker = BrokerProcess(database, tmp_path)
    broker.init()
    files = [f"--tls-cert={certificates}/server.crt", f"--tls-key={certificates}/server.key"]

    def refused(*options: str) -> str:
        everywhere = ["--dsn", database.dsn, "--listen", f"0.0.0.0:{broker.port}", *options]
        done = run("broker", *everywhere)
        assert done.returncode == 2, done.stderr
        return done.stderr

    assert "--tls-cert" in refused()
    assert "tailrace broker user add" in refused(*files)
    assert "tailrace broker user add" in refused("--insecure")
    assert "both" in refused(files[0])
    broker.account("user", "add", "ann", "--superuser", password="1")
    assert "cannot load the TLS certificate" in refused(f"--tls-cert={os.devnull}", files[1])
    assert "--tls-cert" in refused()
    advertised = f"localhost:{broker.port}"
    everywhere = BrokerProcess(
        database, tmp_path, "--listen", f"0.0.0.0:{broker.port}", "--insecure", "--advertise",
        advertised, port=broker.port,
    )  # fmt: skip
    everywhere.start()
    everywhere.wait_until(lambda: "broker.unencrypted" in everywhere.output, "the warning")
    with Raw(everywhere.port) as raw:
        assert not raw.login("ann", "1").error_code
        (found,) = raw.ask(3, 9, {"topics": []}).brokers
        assert (found.host, found.port) == ("localhost", broker.port)
        found = raw.ask(10, 2, {"key": "g", "key_type": 0})
        assert (found.host, found.port) == ("localhost", broker.port)
    everywhere.account("user", "remove", "ann")
    wait_for(lambda: not _open(everywhere), "anonymous clients to be refused")
    assert everywhere.stop() == 0
