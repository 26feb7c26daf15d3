"""Every type in Creek's Avro, decoded by fastavro, with PostgreSQL's text as the oracle."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tailrace.encode.creek import schema as creek
from tests.creek import as_text, event, schemas_of
from tests.integration.test_types import cases, query
from tests.unit.encode.groups import encoder

if TYPE_CHECKING:
    from tests.fix_postgres import Database
    from tests.integration.test_types import Case

__all__ = ["cases"]


def test_values_of_every_type(database: Database, cases: list[Case]) -> None:
    native = set()
    for case in cases:
        assert case.group.relation is not None
        schemas = schemas_of(case.group)
        full = json.loads(creek.event(case.group.relation, case.group.types).text)
        field = full["fields"][5]["type"][1]["fields"][1]
        payloads = encoder("creek", "avro").encode(case.group)["payload"].to_pylist()
        values = [event(payload, schemas, raw=True)["after"]["v"] for payload in payloads]
        found = [as_text(database, case.sql_type, field, value) for value in values]
        rows = query(database, f"SELECT v FROM {case.table} ORDER BY id")
        assert found == [text for (text,) in rows], case.sql_type
        if not all(isinstance(value, str | None) for value in values):
            native.add(field["pgType"])
    assert {
        "bool", "int2", "int4", "int8", "float4", "float8", "numeric", "date", "time", "timestamp",
        "timestamptz", "json", "jsonb", "_int4", "_text",
    } <= native  # fmt: skip
