"""The schema documents of a bridge: their content, and when they are published."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any

import nats
import orjson
import ormsgpack
import pytest

from tailrace import config
from tailrace.errors import SinkUnreachableError
from tailrace.log.format.entry import Kind
from tailrace.log.reader import Earliest
from tailrace.log.relation_history import RelationHistory
from tailrace.log.store import LocalStore
from tailrace.position import Lsn
from tailrace.schemas import publisher as schemas
from tailrace.schemas import store
from tailrace.schemas.documents import document_at
from tailrace.testing import EmbeddedNats
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tailrace.position import Position
    from tailrace.schema import Relation
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
        data = {"data": settings.log.path.parent / "data"}
        whole = settings.model_dump() | data | {"pipelines": {"bridge": pipeline}}
        self.config = config.Config.model_validate(whole)
        [self.publisher] = schemas.publishers(self.config)
        self.url = url
        self.decode = ormsgpack.unpackb if encoding == "msgpack" else orjson.loads

    def bucket(self) -> dict[str, list[Any]]:
        """Every key's values, oldest first."""

        async def read() -> dict[str, list[Any]]:
            client = await nats.connect(self.url)
            try:
                found: dict[str, list[Any]] = {}
                stream = f"KV_{store.BUCKET}"
                state = (await client.jetstream(timeout=60).stream_info(stream)).state
                for sequence in range(state.first_seq, state.last_seq + 1):
                    with contextlib.suppress(nats.js.errors.NotFoundError):
                        message = await client.jetstream(timeout=60).get_msg(stream, sequence)
                        key = (message.subject or "").removeprefix(f"$KV.{store.BUCKET}.")
                        found.setdefault(key, []).append(self.decode(message.data or b""))
                return found
            finally:
                await client.close()

        return asyncio.run(read())

    def listening(self, act: Callable[[], object]) -> list[tuple[str, Any]]:
        """The messages on `schema.>` while an action runs."""

        async def listen() -> list[tuple[str, Any]]:
            client = await nats.connect(self.url)
            try:
                subscription = await client.subscribe("schema.>")
                await client.flush()
                await asyncio.to_thread(act)
                await client.flush()
                found = []
                while subscription.pending_msgs:
                    message = await subscription.next_msg()
                    found.append((message.subject, self.decode(message.data)))
                return found
            finally:
                await client.close()

        return asyncio.run(listen())


@pytest.fixture
def empty(server: EmbeddedNats) -> EmbeddedNats:
    async def clear() -> None:
        client = await nats.connect(server.url)
        for stream in await client.jetstream(timeout=60).streams_info():
            await client.jetstream(timeout=60).delete_stream(stream.config.name or "")
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
    assert Lsn.parse(document.pop("lsn")) > Lsn(0)
    [(oid,)] = database.query("SELECT 'users'::regclass::oid::int8")
    assert document == {
        "table": "users",
        "schema": "public.users",
        "version": 1,
        "ordinal": 0,
        "relation_id": oid,
        "key": ["id"],
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


def test_a_change_is_stored_and_published_once(
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


def test_two_pipelines_publish_a_table_once(
    settings: config.Config, database: Database, empty: EmbeddedNats
) -> None:
    database.execute("CREATE TABLE users (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION my_pub FOR TABLE users")
    one, other = (Documents(settings, empty.url, "json").publisher for _ in range(2))
    assert (one.publish(), other.publish()) == (["users"], [])
    for number in range(70):
        database.execute(f"ALTER TABLE users ADD c{number} int")
        assert (one.publish(), other.publish()) == (["users"], [])
        one, other = other, one
    versions = [
        each["version"] for each in Documents(settings, empty.url, "json").bucket()["users"]
    ]
    assert versions == list(range(8, 72))


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


def test_only_tables_and_columns_of_the_pipeline(
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


def test_an_existing_bucket_is_not_altered(
    settings: config.Config, database: Database, empty: EmbeddedNats
) -> None:
    async def make() -> None:
        client = await nats.connect(empty.url)
        bucket = await client.jetstream(timeout=60).create_key_value(bucket=store.BUCKET, history=3)
        await bucket.put("users", b"\xc1 not a document")
        await client.close()

    asyncio.run(make())
    database.execute("CREATE TABLE users (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION my_pub FOR TABLE users")
    assert Documents(settings, empty.url, "msgpack").publisher.publish() == ["users"]


def test_nats_is_unreachable(settings: config.Config, database: Database) -> None:
    database.execute("CREATE PUBLICATION my_pub")
    documents = Documents(settings, "nats://127.0.0.1:1", "json")
    with pytest.raises(SinkUnreachableError):
        documents.publisher.publish()


def test_the_log_has_every_change_of_columns(
    database: Database, capture: Callable[..., Captured], tmp_path: Path
) -> None:
    """A relation that is only stated again, in a new session, is no change."""
    database.execute("CREATE TABLE users (id int PRIMARY KEY)")
    captured = capture(database)
    captured.catch_up()
    history = RelationHistory(LocalStore(captured.folder))
    assert not history.read()
    expected = []
    for statement, changed in (
        ("INSERT INTO users VALUES (1)", True),
        ("INSERT INTO users VALUES (2)", False),
        ("ALTER TABLE users ADD COLUMN name text", False),
        ("INSERT INTO users VALUES (3, 'x')", True),
        ("ALTER TABLE users ALTER COLUMN name SET DEFAULT 'y'", False),
        ("INSERT INTO users VALUES (4)", False),
    ):
        database.execute(statement)
        captured.catch_up()
        expected.append((statement, changed))
        assert bool(history.read()) == changed, expected
        assert not history.read()


def test_the_log_is_followed_over_segments(
    database: Database, capture: Callable[..., Captured]
) -> None:
    database.execute("CREATE TABLE users (id int PRIMARY KEY, v text)")
    settings = {"segment_bytes": 4000, "flush_bytes": 1000}
    captured = capture(database, log=settings)
    captured.catch_up()
    history = RelationHistory(LocalStore(captured.folder))
    history.read()
    for number in range(20):
        database.execute(f"INSERT INTO users VALUES ({number}, repeat('x', 1000))")
    captured.catch_up()
    assert len(captured.log.segments()) > 3
    assert history.read()
    for number in range(20, 40):
        database.execute(f"INSERT INTO users VALUES ({number}, repeat('x', 1000))")
    captured.catch_up()
    assert not history.read()


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
        # The catalog and the log may each give one.
        _wait_for(lambda: len(documents.bucket()["users"]) >= 2)
    finally:
        stop.set()
        thread.join()
    assert [column["name"] for column in documents.bucket()["users"][-1]["columns"]] == [
        "id",
        "name",
    ]


def _wait_for(condition: Callable[[], object], timeout_s: float = LONG_S) -> None:
    """Until it holds; what it looks at may not be there yet."""

    def found() -> bool:
        with contextlib.suppress(nats.errors.Error, nats.js.errors.Error, KeyError):
            return bool(condition())
        return False

    wait_for(found, "the documents", timeout_s)


STEPS = (
    "CREATE TABLE users (id serial PRIMARY KEY, name varchar(20))",
    "INSERT INTO users (name) VALUES ('a')",
    "ALTER TABLE users ADD email text DEFAULT 'none'",
    "INSERT INTO users (name) VALUES ('b')",
    "BEGIN; INSERT INTO users (name) VALUES ('c'); ALTER TABLE users RENAME name TO called; "
    "INSERT INTO users (called) VALUES ('d'); ALTER TABLE users DROP email; "
    "INSERT INTO users (called) VALUES ('e'), ('f'); COMMIT",
    "ALTER TABLE users ALTER called TYPE int USING 7",
    "ALTER TABLE users ADD late int",
    "INSERT INTO users (called) VALUES (8)",
    "DROP TABLE users; CREATE TABLE users (id int PRIMARY KEY)",
    "INSERT INTO users VALUES (1)",
    "ALTER TABLE users ADD never_used int",
)


@pytest.mark.parametrize("often", [1, 3, len(STEPS)])
@pytest.mark.parametrize("captured_late", [False, True])
def test_every_change_finds_its_document(
    often: int,
    captured_late: bool,
    database: Database,
    capture: Callable[..., Captured],
    empty: EmbeddedNats,
) -> None:
    """GIVEN a table that changes while it is written to, in all ways
    WHEN documents are published after every step, now and then, or at the end, and capture keeps
    up or comes last
    THEN the rule finds for each change of the log a document with its very columns."""
    captured = capture(database)
    captured.catch_up()
    documents = Documents(captured.config, empty.url, "msgpack")
    for number, step in enumerate(STEPS):
        database.execute(step)
        if not captured_late:
            captured.catch_up()
        if number % often == often - 1:
            documents.publisher.publish()
    captured.catch_up()
    # Another process: it goes on where the first one was.
    Documents(captured.config, empty.url, "msgpack").publisher.publish()
    stored = documents.bucket()["users"]
    types = dict(database.query("SELECT oid::int8, format_type(oid, NULL) FROM pg_type"))
    changes = [change for change in captured.changes() if change.relation]
    assert len(changes) == 8
    for change in changes:
        assert change.relation is not None
        found = document_at(stored, change.position)
        assert found is not None
        assert found["relation_id"] == change.relation.oid
        assert [(column["name"], column["data_type"]) for column in found["columns"]] == [
            (column.name, types[column.type_oid]) for column in change.relation.columns
        ]
    assert [column["name"] for column in stored[-1]["columns"]] == ["id", "never_used"]
    assert [document["version"] for document in stored] == list(range(1, len(stored) + 1))
    assert Documents(captured.config, empty.url, "msgpack").publisher.publish() == []


def test_a_table_that_changes_inside_a_transaction_of_many_entries(
    database: Database, capture: Callable[..., Captured]
) -> None:
    """The position is exact wherever the pieces of a transaction begin and end."""
    database.execute("CREATE TABLE users (id serial PRIMARY KEY, v text DEFAULT repeat('x', 100))")
    captured = capture(database, log={"flush_bytes": 2000, "segment_bytes": 20_000})
    captured.catch_up()
    history = RelationHistory(LocalStore(captured.folder))
    history.read()
    alters = "".join(
        f"INSERT INTO users (id) SELECT g FROM generate_series({n}00, {n}{last}) g; "
        f"ALTER TABLE users ADD c{n} int; "
        for n, last in enumerate(("17", "00", "99", "41", "05", "63"), 1)
    )
    database.execute(f"BEGIN; {alters} INSERT INTO users (id) VALUES (1); TRUNCATE users; COMMIT")
    changes = captured.catch_up()
    kinds = [entry.kind for entry in captured.log.read(captured.log.resolve(Earliest()))]
    assert kinds.count(Kind.FRAGMENT) > 1
    assert len(captured.log.segments()) > 1
    firsts: dict[Relation, Position] = {}
    for change in changes:
        assert change.relation is not None
        firsts.setdefault(change.relation, change.position)
    found = {version.relation: version.position for version in history.read()}
    assert found == firsts
    assert len(found) == 7


def test_partitions_have_no_documents(
    database: Database, capture: Callable[..., Captured], empty: EmbeddedNats
) -> None:
    database.execute(
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id); "
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)"
    )
    database.execute(
        "CREATE PUBLICATION tailrace FOR ALL TABLES WITH (publish_via_partition_root = true)"
    )
    captured = capture(database)
    database.execute("INSERT INTO p VALUES (1)")
    captured.catch_up()
    documents = Documents(captured.config, empty.url, "json")
    documents.publisher.publish()
    assert set(documents.bucket()) == {"p"}
