"""Consumers in Go: Creek's public client, and the libraries it is built on."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.creek.system import NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fix_postgres import Database
    from tests.integration.creek.system import Producer

pytestmark = pytest.mark.long

_HERE = Path(__file__).parent / "go"
# Creek's client as the guide describes it, later ones look for streams of other names; and the
# versions of the libraries that it asks for.
_MODULES = {
    "libraries": ("github.com/hamba/avro/v2@v2.14.0", "github.com/nats-io/nats.go@v1.27.0"),
    "public": ("github.com/modfin/creek@8055bc400a74",),
}

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


@pytest.fixture(scope="module", params=["libraries", "public"])
def consumer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., list[dict[str, Any]]]:
    """A consumer that prints JSON."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("needs Go")
    folder = tmp_path_factory.mktemp(request.param) / "consumer"
    shutil.copytree(_HERE / request.param, folder)
    environment = os.environ | {"GOFLAGS": "-mod=mod"}
    for words in (
        ("mod", "init", "consumer"),
        ("get", *_MODULES[request.param]),
        ("build", "-o", "consumer", "."),
    ):
        made = subprocess.run(
            [go, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        if made.returncode:
            pytest.skip(f"go {words[0]}: {made.stderr.strip().splitlines()[-1]}")

    def consume(producer: Producer, *words: str) -> list[dict[str, Any]]:
        done = subprocess.run(
            [str(folder / "consumer"), producer.nats, NAMESPACE, *words],
            capture_output=True, text=True, check=False, timeout=90,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return consume


def test_events_schemas_and_snapshots(
    database: Database,
    producer: Callable[..., Producer],
    consumer: Callable[..., list[dict[str, Any]]],
) -> None:
    database.execute(TABLE)
    running = producer("public.types")
    database.execute(f"INSERT INTO types VALUES ({ROW}); INSERT INTO types (id) VALUES (2)")
    database.execute("INSERT INTO types (id, d, ts, tz) VALUES (3, '-infinity', 'infinity', 'now')")
    database.execute(
        "UPDATE types SET t = 'new' WHERE id = 2; UPDATE types SET id = 4 WHERE id = 3"
    )
    database.execute("DELETE FROM types WHERE id = 4")
    where = (database.name, "public.types")
    found = consumer(running, "wal", *where, "6")
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
    (schema,) = consumer(running, "last-schema", *where)
    assert schema["fingerprint"] == first["fingerprint"]
    assert schema["source"] == "public.types"
    header, *rows = consumer(running, "snapshot", *where)
    assert sorted(row["id"] for row in rows) == [1, 2]
    by_id = {row["id"]: row for row in rows}
    assert _plain(by_id[1]) == _EXPECTED
    assert by_id[2]["t"] == "new"
    assert json.loads(header["schema"])["name"] == "types"
    database.execute("TRUNCATE types")
    assert consumer(running, "wal", *where, "7")[-1]["op"] == "t"


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Arrays are under the name of their branch."""
    return {
        name: _unnamed(value["array"]) if isinstance(value, dict) else value
        for name, value in row.items()
    }


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _unnamed(items: list[Any]) -> list[Any]:
    return [next(iter(item.values())) if isinstance(item, dict) else item for item in items]


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
