"""Creek's formats: Avro schemas of tables, their fingerprints, and packets.

The schema of a message depends only on the columns of its table. Its fingerprint is the CRC-64 of
the canonical form that Creek's Avro library computes (hamba/avro since 2.15.1): logical types are
included, notes such as `pgType` are not. The records of `before` and `after` are both named after
the table, each in its own namespace, because Avro allows no name twice. In Creek's first release
they had no namespace; the encoding `avro-plain` has that form.

A value that its Avro type cannot represent (a numeric NaN, an array with NULLs, a time after the
year 294246) is PostgreSQL's text in a last branch of the union, which Creek does not have. Columns
of types that Creek does not support are text with their own `pgType`.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tailrace.decode.types import Kind, Type, catalog_name, resolve
from tailrace.schema import ReplicaIdentity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tailrace.schema import Column, Relation, TypeName

NAMESPACE = "CREEK"
END = b"EOF"
"""The last message of a snapshot."""
MARK = b"\xc3\x01"
"""The prefix of Avro's single-object encoding; the fingerprint follows."""
OPS = ("c", "u", "u_pk", "d", "t", "r")
INFINITY = ("infinity", "negative_infinity_ca5991f51367e3e4")
"""Infinite dates and times; an Avro symbol cannot begin with a sign."""

_ENUM_NAME = "infinity_modifier"
_ENUM = {"name": _ENUM_NAME, "type": "enum", "symbols": list(INFINITY)}
_PLAIN = {
    Kind.BOOL: "boolean",
    Kind.INT2: "int",
    Kind.INT4: "int",
    Kind.INT8: "long",
    Kind.FLOAT4: "float",
    Kind.FLOAT8: "double",
    Kind.JSON: "bytes",
    Kind.JSONB: "bytes",
}
_STAMP = {"type": "long", "logicalType": "timestamp-micros"}
_ENDLESS = {
    Kind.DATE: {"type": "int", "logicalType": "date"},
    Kind.TIME: {"type": "long", "logicalType": "time-micros"},
    Kind.TIMESTAMP: _STAMP,
    Kind.TIMESTAMPTZ: _STAMP,
}
_TEXTS = frozenset({"char", "varchar", "bpchar", "text"})
_ELEMENTS = frozenset({*_PLAIN, *_ENDLESS, Kind.UUID, Kind.NUMERIC, Kind.TEXT})
_BEYOND = frozenset({Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.NUMERIC, Kind.ARRAY})
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]")
_EMPTY_CRC = 0xC15D213AA4D7A795


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """A schema as consumers receive it."""

    text: str
    fingerprint: bytes

    @property
    def name(self) -> str:
        """The fingerprint in base64."""
        return base64.urlsafe_b64encode(self.fingerprint).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A column of a record: its type and whether it may be NULL, which give its union."""

    type: Type
    nullable: bool

    @property
    def native(self) -> bool:
        """Whether values have an Avro type; otherwise they are PostgreSQL's text."""
        return supported(self.type)

    @property
    def endless(self) -> bool:
        """Whether the union has a branch for infinity."""
        return self.type.kind in _ENDLESS

    @property
    def beyond(self) -> bool:
        """Whether the union has a branch for text."""
        return self.native and self.type.kind in _BEYOND

    @property
    def branches(self) -> int:
        """The number of branches."""
        return self.nullable + 1 + self.endless + self.beyond


def supported(type_: Type) -> bool:
    """Whether Creek has an Avro type for it; other types are text."""
    match type_.kind:
        case Kind.ARRAY:
            return type_.element is not None and type_.element.kind in _ELEMENTS
        case Kind.NUMERIC:
            return type_.precision is not None and 0 <= type_.scale <= type_.precision
        case _:
            return type_.kind in _PLAIN or type_.kind in _ENDLESS or type_.kind is Kind.UUID


def fields(
    relation: Relation, types: Mapping[int, TypeName], *, partial: bool = False
) -> Iterator[tuple[Column, Field]]:
    """The columns of a relation as members of a record. In a partial row any may be missing."""
    always = relation.replica_identity is ReplicaIdentity.DEFAULT and not partial
    for column in relation.columns:
        type_ = resolve(column.type_oid, column.type_modifier, types)
        if type_.kind is Kind.ARRAY and not _is_avro_array(column, types):
            type_ = Type(kind=Kind.TEXT)
        yield column, Field(type=type_, nullable=not (always and column.key))


def _is_avro_array(column: Column, types: Mapping[int, TypeName]) -> bool:
    """Whether an array is an Avro array: for text only with the four types that Creek supports."""
    type_ = resolve(column.type_oid, column.type_modifier, types)
    assert type_.element is not None
    name = catalog_name(column.type_oid, types)
    return type_.element.kind is not Kind.TEXT or name.removeprefix("_") in _TEXTS


def event(
    relation: Relation,
    types: Mapping[int, TypeName],
    *,
    partial: bool = False,
    namespaced: bool = True,
) -> Schema:
    """The schema of a table's changes.

    The schema of a partial change has `unchanged`: the names of columns whose large values did not
    change and are not known. In `after` they are null.
    """
    return _event(relation, tuple(sorted(types.items())), partial, namespaced)


def row(relation: Relation, types: Mapping[int, TypeName]) -> Schema:
    """The schema of a table's rows in snapshots."""
    return _row(relation, tuple(sorted(types.items())))


@lru_cache(maxsize=4096)
def _event(
    relation: Relation, types: tuple[tuple[int, TypeName], ...], partial: bool, namespaced: bool
) -> Schema:
    used = dict(types)
    before, after = ("before", "after") if namespaced else ("", "")
    members = list(fields(relation, used, partial=partial))
    keys = [member for member in fields(relation, used) if member[0].key]
    text, stamp = "string", _STAMP
    source = {
        "name": text, "tx_at": stamp, "db": text, "schema": text, "table": text,
        "tx_id": "long", "last_lsn": text, "lsn": text,
    }  # fmt: skip
    listed = [
        ("fingerprint", text),
        ("source", _record("source", source.items())),
        ("op", {"name": "op", "type": "enum", "symbols": list(OPS)}),
        ("sent_at", stamp),
        ("before", ["null", _table(relation, keys, used, before)]),
        ("after", ["null", _table(relation, members, used, after)]),
    ]
    if partial:
        listed.append(("unchanged", {"type": "array", "items": text}))
    tree = _record("publish_message", listed)
    # hamba/avro before 2.15.1 puts a type's definition in place of references to it.
    return _schema(tree, canonical(tree if namespaced else _expanded(tree)))


@lru_cache(maxsize=4096)
def _row(relation: Relation, types: tuple[tuple[int, TypeName], ...]) -> Schema:
    used = dict(types)
    tree = _table(relation, fields(relation, used), used)
    return _schema(tree, canonical(tree))


def _schema(tree: Any, canonical_text: str) -> Schema:
    text = json.dumps(tree, ensure_ascii=False, separators=(",", ":"))
    return Schema(text=text, fingerprint=crc64(canonical_text.encode()).to_bytes(8, "big"))


def _expanded(tree: Any) -> Any:
    match tree:
        case list():
            return [_expanded(each) for each in tree]
        case dict():
            # A column may have the name of the type.
            return {key: each if key == "name" else _expanded(each) for key, each in tree.items()}
        case _:
            return _ENUM if tree == _ENUM_NAME else tree


def _record(name: str, members: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    listed = [{"name": member, "type": type_} for member, type_ in members]
    return {"name": name, "type": "record", "fields": listed}


def _table(
    relation: Relation,
    members: Iterable[tuple[Column, Field]],
    types: Mapping[int, TypeName],
    namespace: str = "",
) -> dict[str, Any]:
    defined: set[str] = set()
    taken: set[str] = set()
    listed = []
    for column, field in members:
        name = _avro_name(column.name, taken)
        entry = {
            "name": name,
            "type": _type(field, defined),
            "pgKey": column.key,
            "pgType": catalog_name(column.type_oid, types),
        }
        if name != column.name:
            entry["pgName"] = column.name
        listed.append(entry)
    # Avro allows no name twice, also not for a record and an enumeration.
    name = _avro_name(relation.name, {_ENUM_NAME})
    inside = {"namespace": namespace} if namespace else {}
    return {"name": name, **inside, "type": "record", "fields": listed}


def _avro_name(name: str, taken: set[str]) -> str:
    """A valid and unique Avro name: letters, digits and underscores, no digit first."""
    plain = name
    if _NAME.fullmatch(name) is None:
        plain = _NOT_IN_NAMES.sub(lambda match: f"_x{ord(match[0]):X}_", name)
        plain = plain if _NAME.fullmatch(plain) else f"_{plain}"
    unique, number = plain, 1
    while unique in taken:
        number += 1
        unique = f"{plain}_{number}"
    taken.add(unique)
    return unique


def _type(field: Field, defined: set[str]) -> Any:
    branches: list[Any] = ["null"] if field.nullable else []
    branches.append(_value(field.type, defined))
    if field.endless:
        branches.append(_infinity(defined))
    if field.beyond:
        branches.append("string")
    return branches if len(branches) > 1 else branches[0]


def _value(type_: Type, defined: set[str]) -> Any:
    if not supported(type_):
        return "string"
    match type_.kind:
        case Kind.ARRAY:
            assert type_.element is not None
            items = _type(Field(type=type_.element, nullable=False), defined)
            return {"type": "array", "items": items}
        case Kind.NUMERIC:
            digits = {"precision": type_.precision, "scale": type_.scale}
            return {"type": "bytes", "logicalType": "decimal", **digits}
        case Kind.UUID:
            return {"type": "string", "logicalType": "uuid"}
        case kind:
            return _ENDLESS.get(kind) or _PLAIN[kind]


def _infinity(defined: set[str]) -> Any:
    if _ENUM_NAME in defined:
        return _ENUM_NAME
    defined.add(_ENUM_NAME)
    return _ENUM


def canonical(tree: Any, namespace: str = "") -> str:
    """The canonical form, which fingerprints are computed from. Names have their namespace.

    >>> canonical({"type": "array", "items": ["null", {"type": "long", "logicalType": "date"}]})
    '{"type":"array","items":["null",{"type":"long","logicalType":"date"}]}'
    >>> canonical({"name": "users", "namespace": "after", "type": "record", "fields": []})
    '{"name":"after.users","type":"record","fields":[]}'
    """
    match tree:
        case str():
            # The only named type that is used twice; all other strings are Avro's own types.
            text = f'"{_full_name(namespace, tree) if tree == _ENUM_NAME else tree}"'
        case list():
            text = f"[{','.join(canonical(branch, namespace) for branch in tree)}]"
        case {"type": "record", "name": name, "fields": members}:
            inner = tree.get("namespace", namespace)
            listed = ",".join(
                f'{{"name":"{member["name"]}","type":{canonical(member["type"], inner)}}}'
                for member in members
            )
            text = f'{{"name":"{_full_name(inner, name)}","type":"record","fields":[{listed}]}}'
        case {"type": "enum", "name": name, "symbols": symbols}:
            listed = ",".join(f'"{symbol}"' for symbol in symbols)
            text = f'{{"name":"{_full_name(namespace, name)}","type":"enum","symbols":[{listed}]}}'
        case {"type": "array", "items": items}:
            text = f'{{"type":"array","items":{canonical(items, namespace)}}}'
        case {"type": type_, "logicalType": "decimal", "precision": precision, "scale": scale}:
            digits = f'"precision":{precision}' + (f',"scale":{scale}' if scale else "")
            text = f'{{"type":"{type_}","logicalType":"decimal",{digits}}}'
        case {"type": type_, "logicalType": logical}:
            text = f'{{"type":"{type_}","logicalType":"{logical}"}}'
        case _:
            raise ValueError(f"unknown Avro schema: {tree!r}")
    return text


def _full_name(namespace: str, name: str) -> str:
    return f"{namespace}.{name}" if namespace else name


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        crc = value
        for _ in range(8):
            crc = (crc >> 1) ^ (_EMPTY_CRC & -(crc & 1))
        table.append(crc)
    return table


_CRCS = _crc_table()


def crc64(data: bytes) -> int:
    """Avro's CRC-64.

    >>> hex(crc64(b'"int"'))
    '0x7275d51a3f395c8f'
    """
    crc = _EMPTY_CRC
    for byte in data:
        crc = (crc >> 8) ^ _CRCS[(crc ^ byte) & 0xFF]
    return crc


def packet(data: bytes) -> bytes:
    """The packet of a message: two zero bytes, the length in four bytes, the data."""
    return b"\0\0" + len(data).to_bytes(4, "big") + data


def unpacked(payload: bytes) -> bytes | None:
    """The data of a packet; None if the payload is not a packet."""
    size = int.from_bytes(payload[2:6], "big")
    valid = len(payload) == size + 6 and payload[:2] == b"\0\0"
    return payload[6:] if valid else None
