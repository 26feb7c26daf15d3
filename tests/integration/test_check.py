"""`tailrace check` against a live database and a live NATS server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.config import Config, load
from tailrace.pipeline.check import CHECKS, Report, check
from tailrace.postgres.connection import connect
from tailrace.postgres.publication import read_publication
from tailrace.postgres.relations import read_published
from tailrace.schema import ReplicaIdentity
from tailrace.testing import EmbeddedNats
from tests import command
from tests.waiting import LONG_S

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from tests.fix_capture import Captured
    from tests.fix_postgres import Database

REFERENCE = Path(__file__).parents[2] / "docs/reference/expressions.md"
SINK: dict[str, Any] = {"type": "nats"}


@pytest.fixture
def shop(database: Database) -> Database:
    database.execute(
        "CREATE TYPE state AS ENUM ('open', 'paid');"
        "CREATE TABLE orders (id bigint PRIMARY KEY, status state, total numeric(10,2), note text);"
        "CREATE TABLE audit (line text, at timestamptz); ALTER TABLE audit REPLICA IDENTITY FULL;"
        "CREATE SCHEMA sales; CREATE TABLE sales.leads (id int PRIMARY KEY, name text);"
        "CREATE PUBLICATION shop FOR TABLE orders, audit, sales.leads"
    )
    return database


def config(database: Database, **pipelines: dict[str, Any]) -> Config:
    made = {name: {"sink": SINK} | settings for name, settings in pipelines.items()}
    source = {"dsn": database.dsn, "publication": "shop"}
    return load(None, {"source": source, "pipelines": made})


def checked(database: Database, **settings: Any) -> Report:
    return check(config(database, p=settings), spark=False, sinks=False)


def said(report: Report, name: str) -> list[tuple[str, str]]:
    assert name in CHECKS
    return [(f.severity.value, f.finding) for f in report.findings if f.check == name]


def test_a_valid_pipeline_has_no_findings(shop: Database) -> None:
    report = checked(shop, tables=["orders"], where="after.total > 10")
    assert report.healthy
    assert report.tables == {"p": ["public.orders"]}
    assert [f for f in report.findings if f.severity.value in ("error", "warning")] == []


def test_patterns_without_a_table(shop: Database) -> None:
    report = checked(shop, tables=["orders", "nothing_*", "!sales.x*"])
    assert [finding for _, finding in said(report, "pipeline-tables")] == [
        "nothing_* matches no published table",
        "!sales.x* matches no published table",
    ]


def test_expressions_must_fit_every_table(shop: Database) -> None:
    report = checked(shop, where="total > 1")
    assert not report.healthy
    found = said(report, "expression")
    assert len(found) == 2
    assert "public.audit has no column total" in found[0][1]
    assert "sales.leads has no column total" in found[1][1]
    report = checked(shop, tables=["orders"], where="rand() > 1")
    assert "pipelines.p.where, line 1, column 1: rand() is not allowed" in str(report.findings)


def test_a_column_named_like_a_field_of_the_change(shop: Database) -> None:
    """GIVEN a table with a column op WHEN a filter over all tables says op THEN check refuses it
    for that table: it would mean the operation in the others."""
    shop.execute(
        "CREATE TABLE txlog (id bigint PRIMARY KEY, op bigint);"
        "ALTER PUBLICATION shop ADD TABLE txlog"
    )
    report = checked(shop, where="op <> 'delete'")
    ((severity, finding),) = said(report, "expression")
    assert severity == "error"
    assert "op is a column of public.txlog and a field of the change" in finding
    assert finding.endswith("write after.op or change.op")
    assert checked(shop, where="change.op <> 'delete'").healthy
    one = checked(shop, tables=["txlog"], where="row.op > 1")
    assert "reads op of the old row" in said(one, "expression-old-row")[0][1]


def test_values_that_may_be_missing(shop: Database) -> None:
    report = checked(shop, tables=["orders"], where="note = 'x'")
    assert [severity for severity, _ in said(report, "expression-unchanged")] == ["info"]
    assert [severity for severity, _ in said(report, "expression-old-row")] == ["warning"]
    shop.execute(
        "INSERT INTO orders SELECT 1, 'open', 1, string_agg(md5(n::text), '') "
        "FROM generate_series(1, 4000) n"
    )
    report = checked(shop, tables=["orders"], where="after.note = 'x'")
    assert [severity for severity, _ in said(report, "expression-unchanged")] == ["warning"]
    assert said(report, "expression-old-row") == []
    guarded = checked(shop, tables=["orders"], where="is_known(note) AND note = 'x'")
    assert said(guarded, "expression-unchanged") == said(guarded, "expression-old-row") == []
    aware = checked(shop, tables=["orders"], where="op <> 'delete' AND total > 1")
    assert [severity for severity, _ in said(aware, "expression-old-row")] == ["info"]
    before = checked(shop, tables=["orders"], where="before.status IS DISTINCT FROM after.status")
    assert "reads status of the old row" in said(before, "expression-old-row")[0][1]
    shop.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    full = checked(shop, tables=["orders"], where="before.note <> after.note")
    assert full.findings == ()


def test_keys_and_lanes(shop: Database) -> None:
    shop.execute(
        "CREATE TABLE bare (v int); ALTER PUBLICATION shop SET (publish = 'insert');"
        "ALTER PUBLICATION shop ADD TABLE bare"
    )
    report = checked(shop, tables=["bare", "orders"], lanes=4)
    assert len(said(report, "lanes-key")) == 1
    assert said(checked(shop, tables=["bare"], lanes=4, key="v"), "lanes-key") == []
    (found,) = said(checked(shop, tables=["orders"], lanes=4, key="status"), "lanes-key")
    assert "key status is not in the replica identity" in found[1]
    report = checked(shop, tables=["orders"], select=["total"])
    assert "omits the key (id)" in said(report, "select-key")[0][1]
    assert said(checked(shop, tables=["orders"], select=["id", "total"]), "select-key") == []


def test_destinations_that_the_stream_refuses(shop: Database) -> None:
    sink = SINK | {"stream": {"subjects": ["cdc.*.*"]}}
    report = checked(shop, sink=sink)
    assert not report.healthy
    ((severity, finding),) = said(report, "sink-destinations")
    assert severity == "error"
    assert "does not take cdc.sales.leads.insert and 3 more" in finding
    assert said(checked(shop, sink=sink, route="'cdc.x.y'"), "sink-destinations") == []


def test_without_the_publication(shop: Database) -> None:
    settings = load(None, {"source": {"dsn": shop.dsn, "publication": "none"}})
    report = check(settings, spark=False, sinks=False)
    assert said(report, "publication-exists") == [("error", "publication none does not exist")]


def test_relations_are_those_of_the_stream(database: Database, capture: Any) -> None:
    database.execute(
        "CREATE TYPE state AS ENUM ('open', 'paid');"
        'CREATE TABLE plain (id int, "Odd name" varchar(9), n numeric(9,3), s state, gone int, '
        "g int GENERATED ALWAYS AS (id * 2) STORED, PRIMARY KEY (n, id));"
        "ALTER TABLE plain DROP COLUMN gone;"
        "CREATE TABLE by_index (a int NOT NULL, b text);"
        "CREATE UNIQUE INDEX by_a ON by_index (a);"
        "ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_a;"
        "CREATE TABLE whole (a int, b text); ALTER TABLE whole REPLICA IDENTITY FULL;"
    )
    captured: Captured = capture(database)
    for table, columns in (("plain", "id, n"), ("by_index", "a, b"), ("whole", "a, b")):
        database.execute(f"INSERT INTO {table} ({columns}) VALUES (1, 2)")
    streamed = {
        change.relation.name: change.relation
        for change in captured.catch_up()
        if change.relation is not None
    }
    with connect(database.dsn) as connection:
        publication = read_publication(connection, captured.publication)
        assert publication is not None
        read = {
            each.relation.name: each.relation for each in read_published(connection, publication)
        }
    assert read == streamed
    assert read["whole"].replica_identity is ReplicaIdentity.FULL


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    # It starts Spark.
    return command.run("check", *arguments, timeout_s=LONG_S)


@pytest.fixture(scope="module")
def nats() -> Iterator[EmbeddedNats]:
    with EmbeddedNats() as server:
        yield server


def write(folder: Path, database: Database, nats: EmbeddedNats, where: str) -> str:
    file = folder / "tailrace.yml"
    file.write_text(
        f"source: {{dsn: '{database.dsn}', publication: shop}}\n"
        "pipelines:\n"
        "  paid:\n"
        "    tables: [orders]\n"
        f'    where: "{where}"\n'
        '    route: "id"\n'
        '    select: [id, "total * 2 AS twice"]\n'
        f"    sink: {{type: nats, url: '{nats.url}', stream: {{name: TEST}}}}\n"
    )
    return str(file)


def test_the_command(shop: Database, nats: EmbeddedNats, tmp_path: Path) -> None:
    done = run(write(tmp_path, shop, nats, "after.status = 'paid'"), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["healthy"] is True
    assert report["pipelines"]["paid"]["tables"] == ["public.orders"]
    types = report["pipelines"]["paid"]["types"]["public.orders"]
    assert types == {
        "where": "boolean",
        "route": "bigint",
        "select[0]": "bigint",
        "select[1]": "decimal(12,2)",
    }
    assert {row["check"] for row in report["findings"]} >= {"route-type", "sink"}
    assert set(report["findings"][0]) == {"check", "severity", "subject", "finding", "fix"}


def test_the_command_with_errors(shop: Database, nats: EmbeddedNats, tmp_path: Path) -> None:
    file = write(tmp_path, shop, nats, "after.total + 1")
    done = run(file, "--no-sinks")
    assert done.returncode == 1
    assert "must be a condition, got a value of type decimal" in " ".join(done.stdout.split())
    assert "paid: 1 table" in done.stdout
    assert run(file, "--no-spark", "--no-sinks").returncode == 0


def test_the_command_with_a_number_and_a_text(
    shop: Database, nats: EmbeddedNats, tmp_path: Path
) -> None:
    done = run(write(tmp_path, shop, nats, "after.id <> 'nothing'"), "--no-sinks", "--json")
    assert done.returncode == 1
    (finding,) = [
        row["finding"] for row in json.loads(done.stdout)["findings"] if row["severity"] == "error"
    ]
    assert "pipelines.paid.where: Spark refuses it for public.orders" in finding
    assert "'nothing'" in finding


def test_the_command_without_a_server(tmp_path: Path) -> None:
    done = run("--dsn=host=127.0.0.1 port=1 password=canary-pw")
    assert done.returncode == 20
    assert "canary-pw" not in done.stdout + done.stderr


def test_names_are_stable_and_documented() -> None:
    text = REFERENCE.read_text()
    for name in CHECKS:
        assert f"| `{name}` |" in text
