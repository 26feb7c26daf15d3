"""Decodes Creek's messages by their Avro schemas.

The schemas are parsed without their logical types: fastavro would convert numbers to datetimes and
fail for those that no datetime can hold. `tailrace.client.creek.values` converts them instead. In
schemas of Creek's first release two records share a name, the table's, which Avro forbids. Each
gets its own namespace, as in later releases; that does not change the encoding.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tailrace.client.creek.values import ValueForm, value_reader
from tailrace.errors import ConfigError, MalformedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_FORMS: tuple[ValueForm, ...] = ("python", "message")
_SOURCE = {
    "name": "string", "tx_at": "long", "db": "string", "schema": "string", "table": "string",
    "tx_id": "long", "last_lsn": "string", "lsn": "string",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A column in an Avro record."""

    name: str
    """The field's name: Avro restricts names to letters, digits and underscores."""
    column: str
    type: Any
    pg_type: str
    key: bool

    @property
    def nullable(self) -> bool:
        """Whether the schema allows NULL."""
        return isinstance(self.type, list) and "null" in self.type


class Record:
    """The columns of a table, or those of its key."""

    def __init__(self, tree: Mapping[str, Any]) -> None:
        self.fields = tuple(_field(field) for field in tree["fields"])
        self.columns = tuple(field.column for field in self.fields)
        self._renamed = any(field.name != field.column for field in self.fields)
        self._readers = {form: self._value_readers(form) for form in _FORMS}

    def _value_readers(self, form: ValueForm) -> list[tuple[str, Callable[[Any], Any]]]:
        readers = (
            (field.column, value_reader(field.type, field.pg_type, form)) for field in self.fields
        )
        return [(column, reader) for column, reader in readers if reader is not None]

    def row(self, raw: dict[str, Any], form: ValueForm) -> dict[str, Any]:
        """A decoded Avro record as a row of the table."""
        if self._renamed:
            raw = {field.column: raw[field.name] for field in self.fields}
        for column, reader in self._readers[form]:
            value = raw[column]
            if value is not None:
                raw[column] = reader(value)
        return raw


def _field(tree: Mapping[str, Any]) -> Field:
    return Field(
        name=tree["name"],
        column=tree.get("pgName", tree["name"]),
        type=tree["type"],
        pg_type=tree.get("pgType", "text"),
        key=bool(tree.get("pgKey")),
    )


class RowSchema:
    """The schema of a snapshot's rows."""

    def __init__(self, text: str) -> None:
        tree = _parse(text)
        with _RaiseMalformed("the Avro schema of rows is invalid"):
            self.record = Record(tree)
            self._reader = AvroReader(_without_logical_types(tree))

    def decode(self, body: bytes, form: ValueForm) -> dict[str, Any]:
        """Decode a row."""
        raw = self._reader.read(body)
        with _RaiseMalformed("a row does not match its schema"):
            return self.record.row(raw, form)

    def can_decode(self, body: bytes) -> bool:
        """Whether these bytes could be a row."""
        try:
            self.decode(body, "python")
        except MalformedError:
            return False
        return True


class ChangeSchema:
    """The schema of changes."""

    def __init__(self, text: str) -> None:
        tree = _parse(text)
        with _RaiseMalformed("the Avro schema of changes is invalid"):
            fields = {field["name"]: field["type"] for field in tree["fields"]}
            self.before = Record(_record_branch(fields["before"]))
            self.after = Record(_record_branch(fields["after"]))
            self._reader = AvroReader(_without_logical_types(tree))

    def decode(self, body: bytes, form: ValueForm) -> dict[str, Any]:
        """Decode a change, with its rows."""
        raw = self._reader.read(body)
        with _RaiseMalformed("a change does not match its schema"):
            for name, record in (("before", self.before), ("after", self.after)):
                if raw[name] is not None:
                    raw[name] = record.row(raw[name], form)
        return raw


class AvroReader:
    """Decodes bytes by a schema."""

    def __init__(self, tree: Any) -> None:
        self._tree = tree

    @cached_property
    def _read(self) -> Callable[[io.BytesIO], Any]:
        fastavro = load_fastavro()
        try:
            parsed = fastavro.parse_schema(self._tree)
        except Exception as error:
            raise MalformedError(f"an Avro schema is invalid: {error}") from error
        return lambda source: fastavro.schemaless_reader(source, parsed, None)

    def read(self, body: bytes, *, prefix: bool = False) -> dict[str, Any]:
        """The record in the bytes. With `prefix` more bytes may follow it."""
        read, source = self._read, io.BytesIO(body)
        try:
            record: dict[str, Any] = read(source)
        except Exception as error:
            # fastavro raises many of Python's own errors.
            raise MalformedError(f"a message does not match its schema: {error!r}") from error
        if not prefix and source.tell() != len(body):
            raise MalformedError(
                f"a message has {len(body) - source.tell()} bytes more than its schema"
            )
        return record


def load_fastavro() -> Any:
    """The module fastavro, which is an optional dependency."""
    try:
        import fastavro  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigError(
            "the Creek client needs fastavro, which is not installed",
            hint="pip install 'tailrace[creek]'",
        ) from error
    return fastavro


ORIGIN = AvroReader(
    {
        "name": "origin",
        "type": "record",
        "fields": [
            {"name": "fingerprint", "type": "string"},
            {
                "name": "source",
                "type": {
                    "name": "source",
                    "type": "record",
                    "fields": [{"name": name, "type": type_} for name, type_ in _SOURCE.items()],
                },
            },
        ],
    }
)
"""The first fields of every change, whatever its schema."""


def _parse(text: str) -> dict[str, Any]:
    try:
        tree = json.loads(text)
    except ValueError as error:
        raise MalformedError(f"an Avro schema is not valid JSON: {error}") from error
    if not isinstance(tree, dict):
        raise MalformedError("an Avro schema must be a record")
    return tree


def _record_branch(branches: list[Any]) -> Mapping[str, Any]:
    record: Mapping[str, Any] = next(branch for branch in branches if isinstance(branch, dict))
    return record


def _without_logical_types(tree: Any, namespace: str = "") -> Any:
    """The parts of a schema that decide the encoding, and nothing else."""
    match tree:
        case list():
            return [_without_logical_types(branch, namespace) for branch in tree]
        case {"type": "record", "name": name, "fields": members}:
            fields = [
                {
                    "name": member["name"],
                    "type": _without_logical_types(member["type"], member["name"]),
                }
                for member in members
            ]
            record = {"type": "record", "name": name, "fields": fields}
            return record | {"namespace": namespace} if namespace else record
        case {"type": "enum", "name": name, "symbols": symbols}:
            return {"type": "enum", "name": name, "symbols": symbols}
        case {"type": "array", "items": items}:
            return {"type": "array", "items": _without_logical_types(items, namespace)}
        case {"type": inner}:
            return _without_logical_types(inner, namespace)
        case _:
            return tree


class _RaiseMalformed:
    """Raises Python's errors about unexpected content as MalformedError.

    A class and not a generator: it is entered once per row, where `contextmanager` is slow.
    """

    def __init__(self, message: str) -> None:
        self._message = message

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, (LookupError, StopIteration, TypeError, ValueError, ArithmeticError)):
            raise MalformedError(f"{self._message}: {error!r}") from error
