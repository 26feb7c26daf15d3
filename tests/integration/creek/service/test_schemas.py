"""Schemas: returned by fingerprint, stored in the source, published in JetStream."""

from __future__ import annotations

import asyncio
import base64
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import fastavro
import msgspec
import nats
import nats.errors
import pytest

from tailrace.creek.sql import install
from tailrace.encode.creek import schema as creek
from tailrace.postgres.connection import connect
from tailrace.testing.proxy import TcpProxy
from tests.integration.cases.running import running, settle
from tests.integration.creek.service.service import NAMESPACE, Service, fingerprints
from tests.jetstream import purge
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from nats.aio.msg import Msg

    from tailrace.testing import EmbeddedNats
    from tests.fix_capture import Captured
    from tests.fix_postgres import Database

UNKNOWN = "AAAAAAAAAAA="


def readable(text: str) -> Any:
    """The schema as fastavro reads it."""
    tree = json.loads(text)
    for field in tree["fields"]:
        if field["name"] == "before":
            field["type"][1]["namespace"] = "before"
    return fastavro.parse_schema(tree)


def test_a_schema_exists_before_the_first_change(
    captured: Captured, serve: Callable[..., Service]
) -> None:
    started = datetime.now(UTC)
    served = serve(captured)
    [message] = served.eventually_published("users")
    assert set(message) == {"fingerprint", "schema", "source", "created_at"}
    assert message["source"] == "public.users"
    assert started <= datetime.fromisoformat(message["created_at"]) <= datetime.now(UTC)
    after = readable(message["schema"])["fields"][5]["type"][1]
    assert [field["name"] for field in after["fields"]] == ["id", "name"]
    assert served.streams() == {f"{NAMESPACE}_{kind}" for kind in ("wal", "snap", "schema")}
    for subject in ("_schema", "_schemas"):
        assert served.schema(message["fingerprint"], subject) == message
    assert set(served.stored().values()) == {"public.users"}
    assert len(served.stored()) == 2


def test_a_fingerprint_is_known_as_soon_as_the_log_has_it(
    captured: Captured, serve: Callable[..., Service]
) -> None:
    """Nothing is waited for between the change and the request."""
    served = serve(captured)
    captured.catch_up()
    with running(captured):
        for number in range(5):
            captured.database.execute(
                f"ALTER TABLE users ADD c{number} int; INSERT INTO users (id) VALUES ({number})"
            )
            settle(captured)
            for partial in (False, True):
                name = fingerprints(captured, "users", partial=partial)[-1]
                found = served.schema(name)
                assert f"c{number}" in found["schema"]
                assert ("unchanged" in found["schema"]) is partial


def test_old_and_new_schemas_are_answered_after_a_restart(
    captured: Captured, serve: Callable[..., Service], server: EmbeddedNats
) -> None:
    database = captured.database
    served = serve(captured)
    database.execute("INSERT INTO users VALUES (1, 'a')")
    captured.catch_up()
    database.execute("ALTER TABLE users ADD born date; INSERT INTO users VALUES (2, 'b', 'today')")
    captured.catch_up()
    names = fingerprints(captured, "users")
    assert len(names) == 2
    messages = served.eventually_published("users", lambda found: len(found) == 2)
    assert [message["fingerprint"] for message in messages] == names
    wait_for(lambda: set(names) <= set(served.stored()), "both are stored")
    served.stop()
    database.server.restart()
    server.stop()
    server.start()
    served.start()
    assert [served.schema(name) is not None for name in names] == [True, True]
    served.stop()
    # The log is gone, and with it what it states: the table is left.
    for file in [*captured.folder.iterdir(), *(served.config.data / "creek").iterdir()]:
        file.unlink()
    served.start()
    assert [served.schema(name) for name in names] == [
        {key: message[key] for key in ("fingerprint", "schema", "source", "created_at")}
        for message in messages
    ]
    # Nothing is published again that is there.
    database.execute("CREATE TABLE later (id int PRIMARY KEY)")
    database.execute("ALTER PUBLICATION tailrace ADD TABLE later")
    served.eventually_published("later")
    assert served.published("users") == messages


def test_no_schema_is_answered_with_a_wrong_time(
    captured: Captured, serve: Callable[..., Service]
) -> None:
    """Of the schemas of the catalog, only the table knows how old they are."""
    served = serve(captured)
    [message] = served.eventually_published("users")
    wait_for(lambda: message["fingerprint"] in served.stored(), "the schema is stored")
    served.stop()
    for file in (served.config.data / "creek").iterdir():
        file.unlink()
    with connect(captured.database.dsn) as other, other.transaction():
        other.execute("LOCK TABLE _creek.avro_schemas")
        served.start()
        waiting = "SELECT FROM pg_locks WHERE NOT granted AND mode = 'RowExclusiveLock'"
        wait_for(lambda: captured.database.query(waiting), "the catalog's schemas to be stored")
        assert served.is_silent(message["fingerprint"])
    assert served.schema(message["fingerprint"]) == message


def test_a_version_that_no_catalog_read_saw_is_published(
    captured: Captured, serve: Callable[..., Service]
) -> None:
    """The catalog has moved on twice; the log has each version, and today's comes last."""
    database = captured.database
    database.execute("INSERT INTO users VALUES (1, 'a')")
    database.execute("ALTER TABLE users ADD a int; INSERT INTO users VALUES (2, 'b', 1)")
    database.execute("ALTER TABLE users ADD b int; INSERT INTO users VALUES (3, 'c', 1, 1)")
    database.execute("ALTER TABLE users ADD c int")
    commits = [change.position.lsn for change in captured.catch_up()]
    served = serve(captured)
    messages = served.eventually_published("users", lambda found: len(found) == 4)
    named = [message["fingerprint"] for message in messages]
    assert named[:-1] == fingerprints(captured, "users")
    assert '"name":"c"' in messages[-1]["schema"]
    assert [message.get("lsn") for message in messages] == [*map(str, commits), None]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"\xff\xfe\x00",
        b"{}",
        b'{"fingerprint": "Sykce18MgAQ="}',
        b"Sykce18MgA==",
        b"Sykce18MgAQ==",
        b"Sykce18MgAQA",
        b"Sykce18M\ngAQ=",
        "Sykce18Mg\N{LATIN SMALL LETTER E WITH ACUTE}Q=".encode(),
        b"A" * 900_000,
    ],
)
def test_an_invalid_fingerprint_is_refused(
    body: bytes, captured: Captured, serve: Callable[..., Service]
) -> None:
    served = serve(captured)
    for subject in ("_schema", "_schemas"):
        reply = wait_for(lambda: served.ask(body, subject), "a reply")  # noqa: B023
        assert reply.headers is not None
        assert reply.headers["Nats-Service-Error-Code"] == "400"
        assert "fingerprint" in reply.headers["Nats-Service-Error"]
        content = msgspec.json.decode(reply.data)
        assert set(content) == {"error", "code", "hint"}
        assert content["code"] == "MALFORMED"


def test_an_unknown_fingerprint_gets_no_reply(
    captured: Captured, serve: Callable[..., Service]
) -> None:
    """Creek's clients take any reply for a schema, and drop the message if it is none."""
    served = serve(captured)
    with pytest.raises(nats.errors.TimeoutError):
        served.ask(UNKNOWN, timeout_s=1.0)


def test_other_spellings_of_a_fingerprint(
    captured: Captured, serve: Callable[..., Service]
) -> None:
    served = serve(captured)
    [message] = served.eventually_published("users")
    name = message["fingerprint"]
    raw = base64.urlsafe_b64decode(name)
    for spelling in (name.rstrip("="), base64.b64encode(raw).decode(), f"{name}\n"):
        assert served.schema(spelling) == message


def test_while_postgresql_is_away(captured: Captured, serve: Callable[..., Service]) -> None:
    database = captured.database
    served = serve(captured)
    served.eventually_published("users")
    database.execute("ALTER TABLE users ADD late int; INSERT INTO users (id) VALUES (1)")
    captured.catch_up()
    database.server.stop()
    try:
        [name] = fingerprints(captured, "users")
        assert served.schema(name) is not None
        assert served.is_silent(UNKNOWN)
        served.stop()
        served.start()
        assert served.schema(name) is not None
        assert served.is_silent(UNKNOWN)
    finally:
        database.server.start()
    served.eventually_published("users", lambda found: found[-1]["fingerprint"] == name)
    wait_for(lambda: name in served.stored(), "it is stored")


def test_what_log_and_database_cannot_tell_now_is_kept(
    captured: Captured, serve: Callable[..., Service]
) -> None:
    """Retention has removed the changes, and PostgreSQL is away."""
    served = serve(captured)
    captured.database.execute("INSERT INTO users VALUES (1, 'a')")
    captured.catch_up()
    [message] = served.eventually_published("users")
    kept = served.config.data / "creek" / "creek.schemas"
    wait_for(kept.exists, "it is kept")
    served.stop()
    for file in captured.folder.iterdir():
        file.unlink()
    captured.database.server.stop()
    try:
        served.start()
        assert served.schema(message["fingerprint"]) is not None
    finally:
        captured.database.server.start()


def test_while_postgresql_hangs(captured: Captured, serve: Callable[..., Service]) -> None:
    """A line that swallows everything holds up neither an answer nor a refusal."""
    with TcpProxy("127.0.0.1", captured.database.server.port) as line:
        served = serve(captured, dsn=f"{captured.database.dsn} port={line.port}")
        [message] = served.eventually_published("users")
        line.black_hole()
        captured.database.execute("ALTER TABLE users ADD a int; INSERT INTO users VALUES (1)")
        captured.catch_up()
        for name in (message["fingerprint"], *fingerprints(captured, "users")):
            assert served.schema(name) is not None
            assert served.is_silent(UNKNOWN)
        line.heal()
        served.eventually_published("users", lambda found: len(found) == 2)
        served.stop()


def test_many_requests_at_once(captured: Captured, serve: Callable[..., Service]) -> None:
    served = serve(captured)
    [message] = served.eventually_published("users")
    known = message["fingerprint"]

    async def ask() -> list[Msg | BaseException]:
        client = await nats.connect(served.server.url)
        try:
            asked = [
                client.request(f"{NAMESPACE}._schema", name.encode(), timeout=seconds)
                for name, seconds in ((known, LONG_S), (UNKNOWN, 1.0)) * 100
            ]
            return await asyncio.gather(*asked, return_exceptions=True)
        finally:
            await client.close()

    replies = asyncio.run(ask())
    for known_reply, unknown_reply in zip(replies[0::2], replies[1::2], strict=True):
        assert not isinstance(known_reply, BaseException)
        assert msgspec.json.decode(known_reply.data) == message
        assert isinstance(unknown_reply, nats.errors.TimeoutError)


def test_two_databases_share_a_namespace(
    captured: Captured,
    database16: Database,
    capture: Callable[..., Captured],
    serve: Callable[..., Service],
) -> None:
    """The producer that has a schema answers; the other one stays silent."""
    database16.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, total numeric(10, 2));"
        "CREATE PUBLICATION tailrace FOR TABLE orders"
    )
    one, other = serve(captured), serve(capture(database16))
    [users] = one.eventually_published("users")
    [orders] = other.eventually_published("orders")
    for _ in range(5):
        assert one.schema(users["fingerprint"]) == users
        assert one.schema(orders["fingerprint"]) == orders
    assert one.is_silent(UNKNOWN)
    assert one.published("orders") == []


def test_a_role_without_write_privilege(captured: Captured, serve: Callable[..., Service]) -> None:
    """Memory and log answer, and JetStream has the schemas."""
    database = captured.database
    role = f"reader_{database.name}"
    database.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
    try:
        served = serve(captured, dsn=f"{database.dsn} user={role}")
        [message] = served.eventually_published("users")
        assert served.schema(message["fingerprint"]) == message
        assert served.is_silent(UNKNOWN)
        assert served.stored() == {}
        database.execute("ALTER TABLE users ADD late int; INSERT INTO users (id) VALUES (1)")
        captured.catch_up()
        [name] = fingerprints(captured, "users")
        assert served.schema(name) is not None
        served.eventually_published("users", lambda found: found[-1]["fingerprint"] == name)
        # What could not be stored is, once it may be.
        served.stop()
        with connect(database.dsn) as connection:
            install(connection, role=role)
        served.start()
        expected = {message["fingerprint"], name}
        wait_for(lambda: expected <= set(served.stored()), "all are stored")
    finally:
        served.stop()
        database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_without_the_schema_creek(
    database: Database, capture: Callable[..., Captured], serve: Callable[..., Service]
) -> None:
    database.execute("CREATE TABLE users (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION tailrace FOR TABLE users")
    served = serve(capture(database))
    [message] = served.eventually_published("users")
    assert served.schema(message["fingerprint"]) == message


def test_partitions_have_the_roots_schema(
    captured: Captured, serve: Callable[..., Service]
) -> None:
    database = captured.database
    database.execute(
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);"
        "ALTER PUBLICATION tailrace ADD TABLE p; INSERT INTO p VALUES (1)"
    )
    captured.catch_up()
    served = serve(captured)
    [root] = served.eventually_published("p")
    assert served.schema(root["fingerprint"]) is not None
    assert served.published("p1") == []


def test_types_that_are_not_built_in(captured: Captured, serve: Callable[..., Service]) -> None:
    """The catalog and the stream say the same of them, so nothing is published twice."""
    database = captured.database
    database.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'ok');"
        "CREATE DOMAIN cents AS numeric(12, 2); CREATE DOMAIN tags AS text[];"
        "CREATE TABLE odd (id uuid PRIMARY KEY, m mood, c cents, t tags, ms mood[], x int4range);"
        "ALTER PUBLICATION tailrace ADD TABLE odd"
    )
    served = serve(captured)
    [first] = served.eventually_published("odd")
    database.execute("INSERT INTO odd VALUES (gen_random_uuid(), 'ok', 1.5, '{a}', '{sad}')")
    captured.catch_up()
    assert fingerprints(captured, "odd") == [first["fingerprint"]]
    database.execute("ALTER TABLE odd ADD late int")
    messages = served.eventually_published("odd", lambda found: len(found) > 1)
    assert len(messages) == 2


def test_odd_names(captured: Captured, serve: Callable[..., Service]) -> None:
    database = captured.database
    database.execute(
        'CREATE SCHEMA "my.schema"; CREATE TABLE "my.schema"."Odd Table*" ("a b" int PRIMARY KEY);'
        'ALTER PUBLICATION tailrace ADD TABLE "my.schema"."Odd Table*"'
    )
    served = serve(captured)
    served.eventually_published("users")
    [message] = served.published("Odd Table*", "my.schema")
    assert message["source"] == "my.schema.Odd Table*"
    assert served.schema(message["fingerprint"]) == message


def test_nats_restarts(captured: Captured, serve: Callable[..., Service]) -> None:
    served = serve(captured)
    [message] = served.eventually_published("users")
    served.server.kill()
    captured.database.execute("ALTER TABLE users ADD late int")
    served.server.start()
    wait_for(lambda: served.ask(b"?") is not None, "requests to be answered again")
    assert served.schema(message["fingerprint"]) == message
    served.eventually_published("users", lambda found: len(found) == 2)


def test_a_purged_stream_is_filled_again(captured: Captured, serve: Callable[..., Service]) -> None:
    served = serve(captured)
    [message] = served.eventually_published("users")

    purge(served.server.url, f"{NAMESPACE}_schema")
    captured.database.execute("CREATE TABLE nudge (id int PRIMARY KEY)")
    captured.database.execute("ALTER PUBLICATION tailrace ADD TABLE nudge")
    again = served.eventually_published("users")
    assert [each["fingerprint"] for each in again] == [message["fingerprint"]]


def test_stored_schemas_equal_published_schemas(
    captured: Captured, serve: Callable[..., Service]
) -> None:
    """The fingerprint is of the schema that is stored under it."""
    served = serve(captured)
    served.eventually_published("users")
    rows = captured.database.query("SELECT fingerprint, schema FROM _creek.avro_schemas")
    for name, text in rows:
        canonical = creek.canonical(json.loads(text)).encode()
        assert base64.urlsafe_b64decode(name) == creek.crc64(canonical).to_bytes(8, "big")


def test_it_stops_while_every_server_is_unreachable(
    captured: Captured, serve: Callable[..., Service]
) -> None:
    served = serve(captured)
    served.server.kill()
    captured.database.server.stop()
    try:
        served.stop()
    finally:
        captured.database.server.start()
