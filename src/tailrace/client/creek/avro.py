"""Creek's Avro schemas, and messages read by them.

The schemas are read without their logical types: fastavro would make datetimes of numbers that no
datetime can hold. `tailrace.client.creek.values` does that part. Two records of one schema share a
name, the table's, which Avro forbids; each gets a namespace of its own, which no byte depends on.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tailrace.client.creek.values import Form, read
from tailrace.errors import ConfigError, MalformedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_FORMS: tuple[Form, ...] = ("python", "written")
_SOURCE = {
    "name": "string", "tx_at": "long", "db": "string", "schema": "string", "table": "string",
    "tx_id": "long", "last_lsn": "string", "lsn": "string",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A column, as a record has it."""

    name: str
    """In Avro, which cannot have every name."""
    column: str
    type: Any
    pg_type: str
    key: bool

    @property
    def nullable(self) -> bool:
        """Whether it may be NULL, as far as the schema tells."""
        return isinstance(self.type, list) and "null" in self.type


class Record:
    """A table's columns, or those of its key."""

    def __init__(self, tree: Mapping[str, Any]) -> None:
        self.fields = tuple(_field(each) for each in tree["fields"])
        self.columns = tuple(field.column for field in self.fields)
        self._renamed = any(field.name != field.column for field in self.fields)
        self._reads = {form: self._readers(form) for form in _FORMS}

    def _readers(self, form: Form) -> list[tuple[str, Callable[[Any], Any]]]:
        found = ((each.column, read(each.type, each.pg_type, form)) for each in self.fields)
        return [(column, reader) for column, reader in found if reader is not None]

    def row(self, raw: dict[str, Any], form: Form) -> dict[str, Any]:
        """What Avro has, as a row of the table."""
        if self._renamed:
            raw = {field.column: raw[field.name] for field in self.fields}
        for column, reader in self._reads[form]:
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


class Rows:
    """A schema of rows, as snapshots have them."""

    def __init__(self, text: str) -> None:
        tree = _tree(text)
        with _Malformed("a schema of rows is not understood"):
            self.record = Record(tree)
            self._reader = Reader(_bare(tree))

    def row(self, body: bytes, form: Form) -> dict[str, Any]:
        """Read a row."""
        raw = self._reader.read(body)
        with _Malformed("a row cannot be read by its schema"):
            return self.record.row(raw, form)

    def fits(self, body: bytes) -> bool:
        """Whether these bytes could be a row."""
        try:
            self.row(body, "python")
        except MalformedError:
            return False
        return True


class Event:
    """A schema of changes."""

    def __init__(self, text: str) -> None:
        tree = _tree(text)
        with _Malformed("a schema of changes is not understood"):
            members = {each["name"]: each["type"] for each in tree["fields"]}
            self.before = Record(_record(members["before"]))
            self.after = Record(_record(members["after"]))
            self._reader = Reader(_bare(tree))

    def message(self, body: bytes, form: Form) -> dict[str, Any]:
        """Read a change, its rows included."""
        raw = self._reader.read(body)
        with _Malformed("a change cannot be read by its schema"):
            for name, record in (("before", self.before), ("after", self.after)):
                if raw[name] is not None:
                    raw[name] = record.row(raw[name], form)
        return raw


class Reader:
    """Bytes by a schema."""

    def __init__(self, tree: Any) -> None:
        self._tree = tree

    @cached_property
    def _read(self) -> Callable[[io.BytesIO], Any]:
        fastavro = library()
        try:
            parsed = fastavro.parse_schema(self._tree)
        except Exception as error:
            raise MalformedError(f"an Avro schema is not understood: {error}") from error
        return lambda source: fastavro.schemaless_reader(source, parsed, None)

    def read(self, body: bytes, *, whole: bool = True) -> dict[str, Any]:
        """What the bytes hold. Unless `whole`, more may follow."""
        read, source = self._read, io.BytesIO(body)
        try:
            found: dict[str, Any] = read(source)
        except Exception as error:
            # fastavro's errors are Python's own, of many kinds.
            raise MalformedError(f"a message does not follow its schema: {error!r}") from error
        if whole and source.tell() != len(body):
            raise MalformedError(
                f"a message has {len(body) - source.tell()} bytes more than its schema"
            )
        return found


def library() -> Any:
    """fastavro, which is not among the things that everybody needs."""
    try:
        import fastavro  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ConfigError(
            "Creek's messages need a library that is not installed",
            hint="pip install 'tailrace[creek]'",
        ) from error
    return fastavro


ORIGIN = Reader(
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
"""How every change begins, whatever its schema."""


def _tree(text: str) -> dict[str, Any]:
    try:
        tree = json.loads(text)
    except ValueError as error:
        raise MalformedError(f"an Avro schema is not JSON: {error}") from error
    if not isinstance(tree, dict):
        raise MalformedError("an Avro schema is not a record")
    return tree


def _record(branches: list[Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(each for each in branches if isinstance(each, dict))
    return found


def _bare(tree: Any, namespace: str = "") -> Any:
    """A schema that says how bytes are laid out, and nothing else."""
    match tree:
        case list():
            return [_bare(branch, namespace) for branch in tree]
        case {"type": "record", "name": name, "fields": members}:
            fields = [
                {"name": each["name"], "type": _bare(each["type"], each["name"])}
                for each in members
            ]
            found = {"type": "record", "name": name, "fields": fields}
            return found | {"namespace": namespace} if namespace else found
        case {"type": "enum", "name": name, "symbols": symbols}:
            return {"type": "enum", "name": name, "symbols": symbols}
        case {"type": "array", "items": items}:
            return {"type": "array", "items": _bare(items, namespace)}
        case {"type": inner}:
            return _bare(inner, namespace)
        case _:
            return tree


class _Malformed:
    """What Python says of something unexpected, as an error of ours."""

    def __init__(self, words: str) -> None:
        self._words = words

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, (LookupError, StopIteration, TypeError, ValueError, ArithmeticError)):
            raise MalformedError(f"{self._words}: {error!r}") from error
