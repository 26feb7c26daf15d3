"""Consumers in Go: Creek's own clients, and the libraries that they are built on."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.creek.system import NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.encode.creek.names import LayoutName
    from tests.fix_postgres import Database
    from tests.integration.creek.system import Producer

    Consume = Callable[..., list[dict[str, Any]]]

pytestmark = pytest.mark.long

_HERE = Path(__file__).parent / "go"
_CLIENTS = Path(
    os.environ.get("CREEK_CLIENTS", Path(__file__).parents[4] / "shared/tools/creek-client")
)
"""A folder with Creek's own clients and a script `build OUT`, which creates creekclient-YEAR."""
_TIMEOUT_S = 120
_NATS = "github.com/nats-io/nats.go@v1.28.0"
_MODULES = {
    "avro-2.14": ("github.com/hamba/avro/v2@v2.14.0", _NATS),
    "avro-2.15": ("github.com/hamba/avro/v2@v2.15.1-0.20230829111833-9a35d44ec666", _NATS),
    "avro-2.31": ("github.com/hamba/avro/v2@v2.31.0", _NATS),
}
"""The Avro library of Creek's first release, that of its client of 2023, and the newest."""

TABLE = """
CREATE TABLE types (
    id int PRIMARY KEY, b bool, c "char", vc varchar(10), bp char(3), d date, f4 float4, f8 float8,
    i2 int2, i8 int8, j json, jb jsonb, t text, ti time, ts timestamp, tz timestamptz, u uuid,
    n numeric(10, 2), ba bool[], va varchar[], da date[], f8a float8[], ia int4[], jba jsonb[],
    ta text[], tza timestamptz[], ua uuid[], na numeric(10, 2)[], other inet
)
"""
ROW = """
1, true, 'x', 'varchar', 'ab', '2026-11-15', 1.5, 2.25, -3, 123456789012, '{"a": 1}', '{"b": 2}',
'text é', '12:34:56.789', '2026-11-15 12:34:56.5', '2026-11-15 12:34:56.5+00',
'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', -12.50, '{t,f}', '{a,"b c"}', '{2026-11-15,infinity}',
'{1.5,-2}', '{1,2,3}', array['{"c": 3}'::jsonb], '{x,y}', '{"2026-11-15 12:34:56+00"}',
'{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}', '{1.50,2.25}', '10.0.0.1'
"""


def _go() -> str:
    go = shutil.which("go")
    if go is None:
        pytest.skip("needs Go")
    return go


def _built(words: list[str], folder: Path, **environment: str) -> None:
    """Run a step of a build. Without the network it fails, and the test is skipped."""
    done = subprocess.run(
        words, cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"{' '.join(words[:2])}: {done.stderr.strip().splitlines()[-1]}")


def _consumed(*words: str) -> list[dict[str, Any]]:
    """The lines that a consumer prints."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module", params=list(_MODULES))
def modules(request: pytest.FixtureRequest) -> str:
    """The versions of the libraries."""
    return str(request.param)


@pytest.fixture(scope="module")
def libraries(modules: str, tmp_path_factory: pytest.TempPathFactory) -> Consume:
    """A consumer that checks every schema and fingerprint."""
    go = _go()
    folder = tmp_path_factory.mktemp("libraries") / "consumer"
    shutil.copytree(_HERE / "libraries", folder)
    for words in (
        ["mod", "init", "consumer"],
        ["get", *_MODULES[modules]],
        ["build", "-o", "consumer", "."],
    ):
        _built([go, *words], folder, GOFLAGS="-mod=mod")

    def consume(producer: Producer, *words: str) -> list[dict[str, Any]]:
        return _consumed(str(folder / "consumer"), producer.nats, NAMESPACE, *words)

    return consume


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Consume]:
    """Creek's own clients, by their year."""
    _go()
    if not (_CLIENTS / "build").exists():
        pytest.skip("needs the sources of Creek's clients: set CREEK_CLIENTS to their folder")
    folder = tmp_path_factory.mktemp("clients")
    built = subprocess.run(
        [str(_CLIENTS / "build"), str(folder)], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr

    def of_year(year: str) -> Consume:
        def consume(producer: Producer, verb: str, *options: str) -> list[dict[str, Any]]:
            where = ["-url", producer.nats, "-db", producer.database.name, "-table", "public.types"]
            program = str(folder / f"creekclient-{year}")
            lines = _consumed(program, *where, "-idle", "60s", *options, verb)
            return [line["value"] for line in lines]

        return consume

    return of_year


def write(database: Database) -> None:
    """Six changes: all types, NULLs, infinity, updates with and without a new key, a delete."""
    database.execute(f"INSERT INTO types VALUES ({ROW}); INSERT INTO types (id) VALUES (2)")
    database.execute("INSERT INTO types (id, d, ts, tz) VALUES (3, '-infinity', 'infinity', 'now')")
    database.execute(
        "UPDATE types SET t = 'new' WHERE id = 2; UPDATE types SET id = 4 WHERE id = 3"
    )
    database.execute("DELETE FROM types WHERE id = 4")


def check_changes(found: list[dict[str, Any]], database: Database) -> None:
    """The changes of `write`."""
    assert [each["op"] for each in found] == ["c", "c", "c", "u", "u_pk", "d"]
    assert [each["before"] for each in found] == [
        None, None, None, {"id": 2}, {"id": 3}, {"id": 4},
    ]  # fmt: skip
    first = found[0]
    assert first["source"]["db"] == database.name
    assert (first["source"]["schema"], first["source"]["table"]) == ("public", "types")
    assert _plain(first["after"]) == _EXPECTED
    assert all(value is None for name, value in found[1]["after"].items() if name != "id")
    assert found[2]["after"]["d"] == "negative_infinity_ca5991f51367e3e4"
    assert found[2]["after"]["ts"] == "infinity"
    assert found[3]["after"]["t"] == "new"


def check_snapshot(found: list[dict[str, Any]]) -> None:
    """The rows that are left after `write`."""
    header, *rows = found
    assert json.loads(header["schema"])["name"] == "types"
    by_id = {row["id"]: row for row in rows}
    assert sorted(by_id) == [1, 2]
    assert _plain(by_id[1]) == _EXPECTED
    assert by_id[2]["t"] == "new"


def test_avro_libraries_decode_everything(
    database: Database, producer: Callable[..., Producer], modules: str, libraries: Consume
) -> None:
    """The library of the first release decodes the form of that release; later ones refuse it."""
    database.execute(TABLE)
    first_release = modules == "avro-2.14"
    running = producer("public.types", encoding="avro-plain" if first_release else "avro")
    write(database)
    where = (database.name, "public.types")
    found = libraries(running, "wal", *where, "6")
    check_changes(found, database)
    (schema,) = libraries(running, "last-schema", *where)
    assert schema["fingerprint"] == found[0]["fingerprint"]
    assert schema["source"] == "public.types"
    check_snapshot(libraries(running, "snapshot", *where))


@pytest.mark.parametrize(("year", "layout"), [("2023", "namespace"), ("2025", "database")])
def test_creeks_own_clients(
    year: str,
    layout: LayoutName,
    database: Database,
    producer: Callable[..., Producer],
    clients: Callable[[str], Consume],
) -> None:
    """GIVEN a producer in the layout of a client WHEN the client reads changes from the beginning
    and from a time, a schema, and a snapshot THEN it gets what PostgreSQL has."""
    consume = clients(year)
    database.execute(f"{TABLE}; ALTER TABLE types ALTER t SET STORAGE EXTERNAL")
    running = producer("public.types", layout=layout)
    write(database)
    found = consume(running, "wal-all", "-count", "6")
    check_changes(found, database)
    last, asked = consume(running, "schema")
    assert last == asked
    assert last["fingerprint"] == found[0]["fingerprint"]
    check_snapshot(consume(running, "snapshot"))
    # A value that its type cannot hold, and an update that leaves out an unchanged large value.
    database.execute("INSERT INTO types (id, n, t) VALUES (5, 'NaN', repeat('x', 10000))")
    database.execute("UPDATE types SET i2 = 5 WHERE id = 5; TRUNCATE types")
    an_hour_ago = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    position = ("-from", an_hour_ago, "-lsn", found[-1]["source"]["lsn"])
    odd, partial, emptied = consume(running, "wal", *position, "-count", "3")
    assert (odd["after"]["n"], odd["after"]["t"]) == ("NaN", "x" * 10000)
    assert (partial["after"]["i2"], partial["after"]["t"]) == (5, None)
    assert (emptied["op"], emptied["after"]) == ("t", None)


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """The values without the names of their union branches, where a client shows them.

    Creek's client knows the enumeration of infinite times in `before` and `after` only: in rows of
    a snapshot, its Avro library shows the branch of columns that have it.
    """
    branches = {name: _branch(value) for name, value in row.items()}
    return {
        name: [_branch(item) for item in value] if isinstance(value, list) else value
        for name, value in branches.items()
    }


def _branch(value: Any) -> Any:
    return next(iter(value.values())) if isinstance(value, dict) else value


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


_UUID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
_EXPECTED: dict[str, Any] = {
    "id": 1, "b": True, "c": "x", "vc": "varchar", "bp": "ab ", "d": "2026-11-15T00:00:00Z",
    "f4": 1.5, "f8": 2.25, "i2": -3, "i8": 123456789012, "j": _base64('{"a": 1}'),
    "jb": _base64('{"b": 2}'), "t": "text é", "ti": 45_296_789_000_000,
    "ts": "2026-11-15T12:34:56.5Z", "tz": "2026-11-15T12:34:56.5Z", "u": _UUID, "n": "-25/2",
    "ba": [True, False], "va": ["a", "b c"], "da": ["2026-11-15T00:00:00Z", "infinity"],
    "f8a": [1.5, -2], "ia": [1, 2, 3], "jba": [_base64('{"c": 3}')], "ta": ["x", "y"],
    "tza": ["2026-11-15T12:34:56Z"], "ua": [_UUID], "na": ["3/2", "9/4"], "other": "10.0.0.1",
}  # fmt: skip
"""As Go writes it: bytes in base64, decimals as fractions, a time of day in nanoseconds."""
