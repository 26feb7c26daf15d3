"""pgoutput and replication frames as real PostgreSQL sends them; PostgreSQL is the oracle.

Every message that passes through here is written back and must give the same bytes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from psycopg import pq

from tailrace.change import ABSENT, UNCHANGED, Binary, Row
from tailrace.position import Lsn
from tailrace.schema import Column, Relation, ReplicaIdentity, TypeName
from tailrace.wire import pgoutput, replication
from tailrace.wire.pgoutput import (
    AnyMessage,
    Begin,
    Commit,
    Delete,
    Insert,
    Message,
    OldKey,
    OldRow,
    Origin,
    Truncate,
    Update,
    key_row,
)
from tailrace.wire.pgtime import PgTime
from tailrace.wire.replication import Keepalive, StatusUpdate, XLogData
from tests.waiting import wait_for

if TYPE_CHECKING:
    from tests.fix_postgres import Database

M = TypeVar("M", bound=AnyMessage)

SCHEMA = """
CREATE TYPE mood AS ENUM ('sad', 'né', 'ha''ppy');
CREATE DOMAIN positive AS int CHECK (value > 0);
CREATE DOMAIN tiny AS positive CHECK (value < 10);
CREATE DOMAIN feeling AS mood;
CREATE TYPE pair AS (a int, b text);
CREATE TABLE plain (
    id int PRIMARY KEY, flag bool, n numeric(12, 3), f float8, at timestamptz, span interval,
    raw bytea, doc jsonb, list text[], r int4range, u uuid, net inet, fixed char(5), c "char",
    m mood, p positive, t tiny, fl feeling, pr pair, ps positive[], big text
);
ALTER TABLE plain ALTER big SET STORAGE EXTERNAL;
CREATE TABLE whole (a int, b text, big text);
ALTER TABLE whole REPLICA IDENTITY FULL;
ALTER TABLE whole ALTER big SET STORAGE EXTERNAL;
CREATE TABLE indexed (id serial PRIMARY KEY, code text NOT NULL, part int NOT NULL, note text);
CREATE UNIQUE INDEX indexed_code ON indexed (part, code);
ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_code;
CREATE TABLE keyless (a int, b text);
CREATE TABLE nothing (id int PRIMARY KEY);
ALTER TABLE nothing REPLICA IDENTITY NOTHING;
CREATE TABLE empty ();
ALTER TABLE empty REPLICA IDENTITY FULL;
CREATE TABLE parent (id serial PRIMARY KEY);
CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent);
CREATE TABLE computed (gone int, id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED);
ALTER TABLE computed DROP gone;
CREATE SCHEMA "Sch.éma *>";
CREATE TABLE "Sch.éma *>"."quo""te
;-- 😀" ("Id" int, "id" int, "ID" varchar(7), "ééééééééééééééééééééééééééééééé" int, "a
b" int, PRIMARY KEY ("ID", "id"));
CREATE PUBLICATION p FOR ALL TABLES;
"""
SLOT = "SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput')"
ODD = '"Sch.éma *>"."quo""te\n;-- 😀"'

STEPS = [
    """INSERT INTO plain VALUES (1, true, 1.5, 'NaN', 'infinity', '1 mon -3 days', '\\x00ff',
       '{"b": [1, null], "a": "é"}', '{"x, y",NULL,"\\""}', '[1,5)', gen_random_uuid(), '::1/64',
       'ab', 'x', 'ha''ppy', 7, 3, 'né', (1, 'two, "three"'), '{1,2}', repeat('é', 5000))""",
    "INSERT INTO plain (id, f, fixed) SELECT i, random(), '' FROM generate_series(2, 50) i",
    "UPDATE plain SET flag = NOT flag, n = n * 3, f = '-Infinity' WHERE id < 10",
    "UPDATE plain SET id = id + 1000 WHERE id IN (1, 7)",
    "UPDATE plain SET big = big || 'more', id = -1 WHERE id = 1001",
    "UPDATE plain SET big = NULL WHERE id = -1",
    "DELETE FROM plain WHERE id % 2 = 0 OR id = -1",
    "INSERT INTO whole SELECT i % 3, NULL, repeat('z', 9000) FROM generate_series(1, 6) i",
    "UPDATE whole SET a = a + 1",
    "UPDATE whole SET b = 'x', big = 'short' WHERE a = 2",
    "DELETE FROM whole WHERE a = 1",
    "INSERT INTO indexed (code, part) VALUES ('é', 1), ('', 2), ('c', 3)",
    "UPDATE indexed SET note = 'same key', id = id + 100",
    "UPDATE indexed SET part = part * 10 WHERE code = ''",
    "DELETE FROM indexed WHERE part = 1",
    "INSERT INTO keyless VALUES (1, 'one'), (NULL, NULL)",
    "INSERT INTO nothing VALUES (1), (2)",
    "INSERT INTO empty DEFAULT VALUES",
    "INSERT INTO empty DEFAULT VALUES; INSERT INTO empty DEFAULT VALUES",
    "DELETE FROM empty WHERE ctid = '(0,1)'",
    "INSERT INTO parent SELECT FROM generate_series(1, 3)",
    "INSERT INTO child SELECT id, id FROM parent",
    "INSERT INTO computed VALUES (1), (2)",
    "UPDATE computed SET id = 20 WHERE id = 2",
    f"INSERT INTO {ODD} VALUES (1, 2, 'k', 3, 4), (5, 6, 'é', 7, 8)",
    f'UPDATE {ODD} SET "ID" = \'\t\n\' WHERE "Id" = 5',
    f'DELETE FROM {ODD} WHERE "id" = 2',
    """BEGIN; SAVEPOINT a; INSERT INTO keyless VALUES (2, 'two'); ROLLBACK TO a;
       INSERT INTO keyless VALUES (3, 'three'); TRUNCATE nothing; INSERT INTO nothing VALUES (9);
       UPDATE plain SET id = id + 1; COMMIT""",
    "BEGIN; INSERT INTO keyless VALUES (4, 'never'); ROLLBACK",
    "TRUNCATE parent, empty RESTART IDENTITY CASCADE",
]


@pytest.fixture(
    params=["database", "database16", pytest.param("database15", marks=pytest.mark.long)]
)
def db(request: pytest.FixtureRequest) -> Database:
    database: Database = request.getfixturevalue(request.param)
    database.execute(SCHEMA)
    database.execute(SLOT)
    return database


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A message with what PostgreSQL says beside it."""

    lsn: Lsn
    xid: int
    message: AnyMessage


def receive(db: Database, *, verb: str = "peek", **options: str) -> list[Sent]:
    """What the slot has to say; parsed, and checked to be written back byte for byte."""
    options = {"proto_version": "1", "publication_names": "p", "messages": "true"} | options
    rows = db.query(
        f"SELECT lsn::text, xid::text, data FROM pg_logical_slot_{verb}_binary_changes("
        "current_database()::name, NULL, NULL, VARIADIC %s::text[])",
        [text for option in options.items() for text in option],
    )
    for _, _, data in rows:
        assert pgoutput.write(pgoutput.parse(data)) == data
    return [
        Sent(lsn=Lsn.parse(lsn), xid=int(xid), message=pgoutput.parse(data))
        for lsn, xid, data in rows
    ]


def messages(db: Database, kind: type[M], **options: str) -> list[M]:
    sent = [item.message for item in receive(db, **options)]
    return [message for message in sent if isinstance(message, kind)]


def select(db: Database, sql: str, *, binary: bool = False) -> list[Row]:
    """Rows as the types' own output functions give them; a cast to text says `true` for `t`."""
    with db.connect() as connection, connection.cursor(binary=binary) as cursor:
        cursor.execute(sql.encode())
        result = cursor.pgresult
        assert result is not None
        rows = [
            tuple(result.get_value(row, column) for column in range(result.nfields))
            for row in range(result.ntuples)
        ]
    return [tuple(Binary(v) if binary and v is not None else v for v in row) for row in rows]


@dataclass(slots=True)
class Replica:
    """Tables kept by nothing but the parsed stream."""

    relations: dict[int, Relation] = field(default_factory=dict)
    rows: dict[int, list[Row]] = field(default_factory=dict)

    def apply(self, message: AnyMessage) -> None:
        match message:
            case Relation(oid=oid):
                self.relations[oid] = message
                self.rows.setdefault(oid, [])
            case Insert(oid=oid, new=new):
                assert len(new) == len(self.relations[oid].columns)
                self.rows[oid].append(new)
            case Update(oid=oid, old=old, new=new):
                before = self.take(oid, old or OldKey(new))
                pairs = zip(before, new, strict=True)
                self.rows[oid].append(tuple(o if n is UNCHANGED else n for o, n in pairs))
            case Delete(oid=oid, old=old):
                self.take(oid, old)
            case Truncate(oids=oids):
                self.rows |= {oid: [] for oid in oids}
            case _:
                pass

    def take(self, oid: int, old: OldKey | OldRow) -> Row:
        wanted = key_row(old.row, self.relations[oid]) if isinstance(old, OldKey) else old.row
        assert any(value is not ABSENT for value in wanted) or not wanted
        found = next(
            number
            for number, row in enumerate(self.rows[oid])
            if all(w in (ABSENT, value) for w, value in zip(wanted, row, strict=True))
        )
        return self.rows[oid].pop(found)

    def check(self, db: Database) -> None:
        for oid, relation in self.relations.items():
            names = ", ".join(quote(column.name) for column in relation.columns)
            table = f"{quote(relation.namespace)}.{quote(relation.name)}"
            assert Counter(self.rows[oid]) == Counter(select(db, f"SELECT {names} FROM {table}"))


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def run(db: Database) -> None:
    for step in STEPS:
        db.execute(step)


def test_a_replica_of_the_stream_equals_the_tables_after_every_step(db: Database) -> None:
    replica = Replica()
    for step in STEPS:
        db.execute(step)
        for sent in receive(db, verb="get"):
            replica.apply(sent.message)
        replica.check(db)
    assert len(replica.relations) == 10


def test_binary_values_are_what_the_send_functions_give(db: Database) -> None:
    db.execute(STEPS[0])
    (insert,) = messages(db, Insert, binary="true")
    assert [insert.new] == select(db, "TABLE plain", binary=True)


def test_relations_say_what_the_catalog_says(db: Database) -> None:
    run(db)
    seen = {relation.oid: relation for relation in messages(db, Relation)}
    assert len(seen) == 10
    assert seen == {oid: catalog_relation(db, oid) for oid in seen}
    assert {relation.replica_identity for relation in seen.values()} == set(ReplicaIdentity)


def catalog_relation(db: Database, oid: int) -> Relation:
    [(namespace, name, identity)] = db.query(
        "SELECT nspname, relname, relreplident::text "
        "FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE c.oid = %s",
        oid,
    )
    columns = db.query(
        """
        SELECT attname, atttypid::int8, atttypmod, relreplident = 'f' OR EXISTS (
            SELECT FROM pg_index WHERE indrelid = c.oid AND attnum = ANY (indkey)
            AND (relreplident = 'd' AND indisprimary OR relreplident = 'i' AND indisreplident))
        FROM pg_attribute JOIN pg_class c ON c.oid = attrelid
        WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
        ORDER BY attnum
        """,
        oid,
    )
    return Relation(
        oid=oid,
        namespace=namespace,
        name=name,
        replica_identity=ReplicaIdentity(identity),
        columns=tuple(
            Column(name=name, type_oid=type_oid, type_modifier=modifier, key=key)
            for name, type_oid, modifier, key in columns
        ),
    )


def test_types_have_their_own_oid_and_their_base_types_name(db: Database) -> None:
    db.execute(STEPS[0])
    catalog = {
        oid: (base, TypeName(oid=oid, namespace=namespace, name=name))
        for oid, base, namespace, name in db.query(
            "SELECT t.oid::int8, typbasetype::int8, nspname, typname "
            "FROM pg_type t JOIN pg_namespace n ON n.oid = typnamespace"
        )
    }
    types = messages(db, TypeName)
    assert [catalog[sent.oid][1].name for sent in types] == [
        *("mood", "positive", "tiny", "feeling", "pair", "_positive"),
    ]
    for sent in types:
        oid = sent.oid
        while base := catalog[oid][0]:
            oid = base
        expected = catalog[oid][1]
        assert (sent.namespace, sent.name) == (expected.namespace, expected.name)
    assert [sent.namespace for sent in types if sent.name == "int4"] == ["pg_catalog"] * 2


def test_transactions_are_framed_as_postgresql_says(db: Database) -> None:
    before = now(db)
    run(db)
    after = now(db)
    stream = receive(db)
    begin: Begin | None = None
    for sent in stream:
        match sent.message:
            case Begin():
                assert begin is None
                begin = sent.message
                assert before <= begin.committed_at.to_datetime() <= after
            case Commit() as commit:
                assert begin is not None
                assert commit.commit_lsn == begin.final_lsn
                assert commit.committed_at == begin.committed_at
                assert commit.end_lsn == sent.lsn > commit.commit_lsn
                begin = None
            case _:
                assert begin is not None
        assert begin is None or begin.xid == sent.xid
    assert begin is None
    assert sum(isinstance(sent.message, Commit) for sent in stream) == len(STEPS) - 1


def now(db: Database) -> datetime:
    [(at,)] = db.query("SELECT clock_timestamp()")
    assert isinstance(at, datetime)
    return at


def test_an_unchanged_toasted_value_is_not_sent_again(db: Database) -> None:
    db.execute(STEPS[0])
    db.execute("UPDATE plain SET flag = false")
    db.execute("UPDATE plain SET id = 2")
    same_key, new_key = messages(db, Update)
    assert same_key.old is None
    assert same_key.new[-1] is UNCHANGED
    assert isinstance(new_key.old, OldKey)
    [relation] = [r for r in messages(db, Relation) if r.oid == new_key.oid]
    assert key_row(new_key.old.row, relation) == (b"1", *[ABSENT] * 20)
    assert new_key.new[-1] is UNCHANGED


def test_the_old_row_has_the_toasted_value_the_new_one_leaves_out(db: Database) -> None:
    db.execute("INSERT INTO whole VALUES (1, NULL, repeat('z', 9000))")
    db.execute("UPDATE whole SET a = 2")
    (update,) = messages(db, Update)
    assert update.old == OldRow((b"1", None, b"z" * 9000))
    assert update.new == (b"2", None, UNCHANGED)


def test_a_column_added_with_a_default_is_in_old_rows(db: Database) -> None:
    db.execute("INSERT INTO whole VALUES (1)")
    db.execute("ALTER TABLE whole ADD extra text DEFAULT 'seven'")
    db.execute("DELETE FROM whole")
    (delete,) = messages(db, Delete)
    assert delete.old == OldRow((b"1", None, None, b"seven"))


@pytest.mark.parametrize(
    ("command", "tables", "cascade", "restart"),
    [
        ("TRUNCATE keyless", ["keyless"], False, False),
        ("TRUNCATE keyless, empty RESTART IDENTITY", ["keyless", "empty"], False, True),
        ("TRUNCATE parent CASCADE", ["parent", "child"], True, False),
        (
            "TRUNCATE parent, indexed, empty RESTART IDENTITY CASCADE",
            ["parent", "indexed", "empty", "child"],
            True,
            True,
        ),
    ],
)
def test_truncate(
    db: Database, command: str, tables: list[str], cascade: bool, restart: bool
) -> None:
    db.execute(command)
    [(oids,)] = db.query(
        "SELECT array_agg(t::regclass::oid::int8) FROM unnest(%s::text[]) t", tables
    )
    (truncate,) = messages(db, Truncate)
    assert truncate == Truncate(oids=tuple(oids), cascade=cascade, restart_identity=restart)


def test_an_origin_gives_its_name_lsn_and_commit_time(db: Database) -> None:
    name = f"{db.name} origin"
    with db.connect() as session:
        session.execute("SELECT pg_replication_origin_create(%s)", (name,))
        session.execute("SELECT pg_replication_origin_session_setup(%s)", (name,))
        session.execute("INSERT INTO keyless VALUES (1)")
        with session.transaction():
            session.execute("SELECT pg_replication_origin_xact_setup('A/BCD', '2001-02-03 UTC')")
            session.execute("INSERT INTO keyless VALUES (2)")
        session.execute("SELECT pg_replication_origin_session_reset()")
    try:
        assert messages(db, Origin) == [
            Origin(lsn=Lsn(0), name=name),
            Origin(lsn=Lsn.parse("A/BCD"), name=name),
        ]
        there = messages(db, Begin)[-1].committed_at.to_datetime()
        assert there == datetime(2001, 2, 3, tzinfo=UTC)
        if db.server.major >= 16:
            assert messages(db, Origin, origin="none") == []
    finally:
        db.execute("SELECT pg_replication_origin_drop(%s)", name)


def test_logical_messages(db: Database) -> None:
    content = bytes(range(256))
    with db.connect() as session:
        emit = "SELECT pg_logical_emit_message(%s, %s, %s::bytea)::text"
        lsns = [
            session.execute(emit, (True, "in é", content)).fetchone(),
            session.execute(emit, (False, "", b"")).fetchone(),
        ]
        with session.transaction(force_rollback=True):
            session.execute(emit, (True, "rolled back", b""))
            lsns.append(session.execute(emit, (False, "kept", b"\0")).fetchone())
        # A message outside of transactions waits in the WAL buffers for the next commit.
        session.execute("INSERT INTO keyless VALUES (1)")
    assert messages(db, Message) == [
        Message(transactional=transactional, lsn=lsn_of(lsn), prefix=prefix, content=body)
        for (transactional, prefix, body), lsn in zip(
            [(True, "in é", content), (False, "", b""), (False, "kept", b"\0")], lsns, strict=True
        )
    ]
    outside = [sent.xid for sent in receive(db) if isinstance(sent.message, Message)]
    assert outside[1] == 0


def lsn_of(row: tuple[Any, ...] | None) -> Lsn:
    assert row is not None
    return Lsn.parse(row[0])


class Walsender:
    """A bare replication connection: frames in, frames out."""

    def __init__(self, db: Database) -> None:
        self.connection = pq.PGconn.connect(f"{db.dsn} replication=database".encode())
        result = self.connection.exec_(
            f"START_REPLICATION SLOT {db.name} LOGICAL 0/0 "
            "(proto_version '1', publication_names 'p', messages 'true')".encode()
        )
        assert result.status == pq.ExecStatus.COPY_BOTH, result.error_message

    def receive(self) -> replication.Frame:
        size, data = self.connection.get_copy_data(0)
        assert size > 0
        frame = replication.parse(data)
        assert replication.write(frame) == bytes(data)
        return frame

    def receive_transaction(self) -> list[XLogData]:
        frames: list[XLogData] = []
        while not frames or frames[-1].data[:1] != b"C":
            frame = self.receive()
            if isinstance(frame, XLogData):
                frames.append(frame)
        return frames

    def send(self, frame: replication.Frame) -> None:
        self.connection.put_copy_data(replication.write(frame))
        self.connection.flush()


def test_frames_carry_the_messages_of_the_slot(db: Database) -> None:
    before = now(db)
    db.execute("INSERT INTO keyless VALUES (1)")
    expected = receive(db)
    walsender = Walsender(db)
    frames = walsender.receive_transaction()
    walsender.connection.finish()
    assert [frame.data for frame in frames] == [pgoutput.write(sent.message) for sent in expected]
    # All but the last message of one WAL record go without an LSN.
    assert [frame.start_lsn for frame in frames] == [
        *(expected[0].lsn, Lsn(0), expected[2].lsn, expected[3].lsn),
    ]
    assert all(before <= frame.sent_at.to_datetime() <= now(db) for frame in frames)


def test_the_slot_moves_to_what_a_status_update_says_is_flushed(db: Database) -> None:
    db.execute("INSERT INTO keyless VALUES (1)")
    walsender = Walsender(db)
    commit = pgoutput.parse(walsender.receive_transaction()[-1].data)
    assert isinstance(commit, Commit)
    walsender.send(
        StatusUpdate(
            written=commit.end_lsn,
            flushed=commit.end_lsn,
            applied=commit.end_lsn,
            sent_at=PgTime.of(now(db)),
            reply_requested=True,
        )
    )
    answer = walsender.receive()
    moved = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s"
    # The answer may be to nothing: a server that has sent everything says so once.
    wait_for(lambda: db.query(moved, db.name) == [(str(commit.end_lsn),)], "the slot to move")
    walsender.connection.finish()
    assert isinstance(answer, Keepalive)
    assert answer.end_lsn >= commit.end_lsn
    assert not answer.reply_requested
