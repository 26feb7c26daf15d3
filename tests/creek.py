"""Creek's messages read by fastavro, and their values as PostgreSQL writes them."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import fastavro

from tailrace.encode.creek import schema as creek

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.fix_postgres import Database


def reader_schema(text: str, *, raw: bool = False) -> Any:
    """A published schema for fastavro, as it is; `raw`: without logical types."""
    tree = json.loads(text)
    return fastavro.parse_schema(_bare(tree) if raw else tree)


def _bare(tree: Any) -> Any:
    if isinstance(tree, list):
        return [_bare(each) for each in tree]
    if isinstance(tree, dict):
        kept = {key: _bare(each) for key, each in tree.items() if key not in _LOGICAL}
        return kept["type"] if kept.keys() == {"type"} else kept
    return tree


_LOGICAL = {"logicalType", "precision", "scale"}


def read(schema: Any, body: bytes) -> Any:
    """One value, which takes all of the bytes."""
    stream = io.BytesIO(body)
    found = fastavro.schemaless_reader(stream, schema, None)
    assert not stream.read()
    return found


def event(payload: bytes, schemas: Mapping[str, str], *, raw: bool = False) -> dict[str, Any]:
    """A message of a table's stream, with the schema it names."""
    content = creek.unpacked(payload)
    assert content is not None
    assert content[:2] == creek.MARK
    name = creek.Schema(text="", fingerprint=content[2:10]).name
    found: dict[str, Any] = read(reader_schema(schemas[name], raw=raw), content[10:])
    assert found["fingerprint"] == name
    return found


def schemas_of(*groups: Any) -> dict[str, str]:
    """The schemas that messages of these groups may have."""
    made = [
        creek.event(group.relation, group.types, partial=partial)
        for group in groups
        for partial in (False, True)
    ]
    return {schema.name: schema.text for schema in made}


def as_text(database: Database, sql_type: str, field: Any, value: Any) -> str | None:
    """A raw value as PostgreSQL writes it."""
    if isinstance(value, list):
        branch = next(each for each in field["type"] if isinstance(each, dict))
        inner = {"type": branch["items"], "pgType": field["pgType"].removeprefix("_")}
        texts = [as_text(database, sql_type.removesuffix("[]"), inner, each) for each in value]
        return _said(database, f"SELECT %s::text[]::{sql_type}::text", texts)
    if value is None or isinstance(value, str):
        return "-infinity" if value == creek.INFINITY[1] else value
    return _scalar(database, field, value)


def _scalar(database: Database, field: Any, value: Any) -> str:
    """Where it takes more than digits, PostgreSQL does it."""
    match field["pgType"]:
        case "bool":
            text = "t" if value else "f"
        case "json" | "jsonb":
            text = value.decode()
        case "date":
            text = _said(database, "SELECT (date '1970-01-01' + %s::int)::text", value)
        case "time":
            seconds, micros = divmod(value, 1_000_000)
            text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
            text += f".{micros:06}".rstrip("0") if micros else ""
        case "timestamp" | "timestamptz" as kind:
            days, micros = divmod(value, 86_400_000_000)
            day = "(date '1970-01-01' + %s::int)::timestamp"
            sql = f"SELECT ({day} + make_interval(secs => %s::float8 / 1e6))::text"
            text = _said(database, sql, days, micros)
            zone = "+00" if kind == "timestamptz" else ""
            text = text.removesuffix(" BC") + zone + (" BC" if text.endswith("BC") else "")
        case "numeric":
            scale = next(each["scale"] for each in field["type"] if isinstance(each, dict))
            number = int.from_bytes(value, "big", signed=True)
            digits = str(abs(number)).rjust(scale + 1, "0")
            point = len(digits) - scale
            text = "-" * (number < 0) + digits[:point] + ("." + digits[point:] if scale else "")
        case "float4" | "float8" as kind:
            text = _said(database, f"SELECT %s::float8::{kind}::text", value)
        case _:
            text = str(value)
    return text


def _said(database: Database, sql: str, *values: object) -> str:
    ((text,),) = database.query(sql, *values)
    return str(text)
