"""The bridge's schema documents: what they say, when they are said again."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import nats
import orjson
import ormsgpack
import pytest

from tailrace import config
from tailrace.engine import schemas
from tailrace.errors import SinkUnreachableError
from tailrace.log.store import LocalStore
from tailrace.testing import EmbeddedNats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fix_capture import Captured
    from tests.fix_postgres import Database


USERS = """
CREATE TABLE users (
    id serial PRIMARY KEY, name varchar(20) NOT NULL, email text, tags text[],
    price numeric(10, 2) DEFAULT 1.5, doubled numeric GENERATED ALWAYS AS (price * 2) STORED
)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedNats]:
    with EmbeddedNats() as started:
        yield started


class Documents:
    """A publisher and the other side of it: the bucket and the messages."""

    def __init__(self, settings: config.Config, url: str, encoding: str, *tables: str) -> None:
        pipeline = {
            "encoding": encoding,
            "tables": tables or ("*.*",),
            "sink": {"type": "nats", "url": url},
        }
        whole = settings.model_dump() | {"pipelines": {"bridge": pipeline}}
        self.config = config.Config.model_validate(whole)
        [self.publisher] = schemas.publishers(self.config)
        self.url = url
        self.decode = ormsgpack.unpackb if encoding == "msgpack" else orjson.loads

    def bucket(self) -> dict[str, list[Any]]:
        """Every key's values, oldest first."""

        async def read() -> dict[str, list[Any]]:
            client = await nats.connect(self.url)
            try:
                bucket = await client.jetstream().key_value(schemas.BUCKET)
                return {
                    key: [self.decode(entry.value or b"") for entry in await bucket.history(key)]
                    for key in await bucket.keys()
                }
            finally:
                await client.close()

        return asyncio.run(read())

    def listening(self, act: Callable[[], object]) -> list[tuple[str, Any]]:
        """What is said on `schema.>` while something is done."""

        async def listen() -> list[tuple[str, Any]]:
            client = await nats.connect(self.url)
            try:
                heard = await client.subscribe("schema.>")
                await client.flush()
                await asyncio.to_thread(act)
                await client.flush()
                found = []
                while heard.pending_msgs:
                    message = await heard.next_msg()
                    found.append((message.subject, self.decode(message.data)))
                return found
            finally:
                await client.close()

        return asyncio.run(listen())


@pytest.fixture
def empty(server: EmbeddedNats) -> EmbeddedNats:
    async def clear() -> None:
        client = await nats.connect(server.url)
        for stream in await client.jetstream().streams_info():
            await client.jetstream().delete_stream(stream.config.name or "")
        await client.close()

    asyncio.run(clear())
    return server


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
def test_documents_have_the_bridges_fields(
    encoding: str, settings: config.Config, database: Database, empty: EmbeddedNats
) -> None:
    database.execute(USERS)
    database.execute("CREATE PUBLICATION my_pub FOR TABLE users")
    documents = Documents(settings, empty.url, encoding)
    assert documents.publisher.publish() == ["users"]
    [[document]] = documents.bucket().values()
    assert isinstance(document.pop("timestamp"), int)
    assert document == {
        "table": "users",
        "schema": "public.users",
        "columns": [
            _column("id", 1, "integer", False, "nextval('users_id_seq'::regclass)"),
            _column("name", 2, "character varying", False),
            _column("email", 3, "text", True),
            _column("tags", 4, "text[]", True),
            _column("price", 5, "numeric", True, "1.5"),
        ],
    }


def _column(
    name: str, position: int, data_type: str, nullable: bool, default: str | None = None
) -> dict[str, Any]:
    return {
        "name": name,
        "position": position,
        "data_type": data_type,
        "is_nullable": nullable,
        "column_default": default,
    }


def test_a_change_is_stored_and_said_and_no_change_is_not(
    settings: config.Config, database: Database, empty: EmbeddedNats
) -> None:
    database.execute("CREATE TABLE users (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION my_pub FOR TABLE users")
    documents = Documents(settings, empty.url, "msgpack")
    [(subject, first)] = documents.listening(documents.publisher.publish)
    assert subject == "schema.users"
    assert documents.listening(documents.publisher.publish) == []
    database.execute("ALTER TABLE users ADD COLUMN name text")
    [(subject, second)] = documents.listening(documents.publisher.publish)
    assert [column["name"] for column in second["columns"]] == ["id", "name"]
    assert documents.bucket() == {"users": [first, second]}


def test_tables_of_other_schemas_and_odd_names(
    settings: config.Config, database: Database, empty: EmbeddedNats
) -> None:
    database.execute("CREATE SCHEMA sales")
    for table in ("users", "sales.users", '"sales.users"', '"Größe *"'):
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION my_pub FOR ALL TABLES")
    documents = Documents(settings, empty.url, "json")
    documents.publisher.publish()
    found = {key: values[-1]["schema"] for key, values in documents.bucket().items()}
    assert found == {
        "users": "public.users",
        "sales.users": "sales.users",
        "sales=2Eusers": "public.sales.users",
        "Gr=C3=B6=C3=9Fe=20=2A": "public.Größe *",
    }


def test_only_the_pipelines_tables_and_columns(
    settings: config.Config, database: Database, empty: EmbeddedNats
) -> None:
    database.execute("CREATE TABLE users (id int PRIMARY KEY, name text, secret text)")
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION my_pub FOR TABLE users (id, name), orders")
    documents = Documents(settings, empty.url, "json", "public.*", "!public.orders")
    documents.publisher.publish()
    [(key, [document])] = documents.bucket().items()
    assert key == "users"
    assert [column["name"] for column in document["columns"]] == ["id", "name"]


def test_a_bucket_that_is_there_is_taken_as_it_is(
    settings: config.Config, database: Database, empty: EmbeddedNats
) -> None:
    async def make() -> None:
        client = await nats.connect(empty.url)
        bucket = await client.jetstream().create_key_value(bucket=schemas.BUCKET, history=3)
        await bucket.put("users", b"\xc1 not a document")
        await client.close()

    asyncio.run(make())
    database.execute("CREATE TABLE users (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION my_pub FOR TABLE users")
    assert Documents(settings, empty.url, "msgpack").publisher.publish() == ["users"]


def test_a_nats_that_is_away(settings: config.Config, database: Database) -> None:
    database.execute("CREATE PUBLICATION my_pub")
    documents = Documents(settings, "nats://127.0.0.1:1", "json")
    with pytest.raises(SinkUnreachableError):
        documents.publisher.publish()


def test_the_log_tells_of_changes(
    database: Database, capture: Callable[..., Captured], tmp_path: Path
) -> None:
    """A relation that is only stated again, in a new session, is no change."""
    database.execute("CREATE TABLE users (id int PRIMARY KEY)")
    captured = capture(database)
    captured.catch_up()
    watch = schemas.Watch(LocalStore(captured.folder))
    assert not watch.changed()
    expected = []
    for statement, news in (
        ("INSERT INTO users VALUES (1)", True),
        ("INSERT INTO users VALUES (2)", False),
        ("ALTER TABLE users ADD COLUMN name text", False),
        ("INSERT INTO users VALUES (3, 'x')", True),
        ("ALTER TABLE users ALTER COLUMN name SET DEFAULT 'y'", False),
        ("INSERT INTO users VALUES (4)", False),
    ):
        database.execute(statement)
        captured.catch_up()
        expected.append((statement, news))
        assert watch.changed() == news, expected
        assert not watch.changed()


def test_the_log_is_followed_over_segments(
    database: Database, capture: Callable[..., Captured]
) -> None:
    database.execute("CREATE TABLE users (id int PRIMARY KEY, v text)")
    settings = {"segment_bytes": 4000, "flush_bytes": 1000}
    captured = capture(database, log=settings)
    captured.catch_up()
    watch = schemas.Watch(LocalStore(captured.folder))
    watch.changed()
    for number in range(20):
        database.execute(f"INSERT INTO users VALUES ({number}, repeat('x', 1000))")
    captured.catch_up()
    assert len(captured.log.segments()) > 3
    assert watch.changed()
    for number in range(20, 40):
        database.execute(f"INSERT INTO users VALUES ({number}, repeat('x', 1000))")
    captured.catch_up()
    assert not watch.changed()


def test_documents_follow_a_running_capture(
    database: Database, capture: Callable[..., Captured], empty: EmbeddedNats
) -> None:
    """GIVEN a published table WHEN it gains a column and a row THEN the bucket has the column."""
    database.execute("CREATE TABLE users (id int PRIMARY KEY)")
    captured = capture(database)
    captured.catch_up()
    documents = Documents(captured.config, empty.url, "msgpack")
    stop = threading.Event()
    thread = threading.Thread(target=schemas.run, args=(documents.config, stop))
    thread.start()
    try:
        _wait_for(lambda: documents.bucket().get("users"))
        database.execute("ALTER TABLE users ADD COLUMN name text")
        database.execute("INSERT INTO users VALUES (1, 'x')")
        captured.catch_up()
        _wait_for(lambda: len(documents.bucket()["users"]) == 2)
    finally:
        stop.set()
        thread.join()
    assert [column["name"] for column in documents.bucket()["users"][-1]["columns"]] == [
        "id",
        "name",
    ]


def _wait_for(condition: Callable[[], object], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if condition():
                return
        except (nats.errors.Error, nats.js.errors.Error, KeyError):
            pass
        assert time.monotonic() < deadline
        time.sleep(0.05)
