"""Table names in three notations: as users write them, in subjects, and as bucket keys."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from tailrace.errors import ConfigError
from tailrace.jetstream.names import table_key, table_path

_NAME = re.compile(r'(?:("(?:[^"]|"")+"|[^".]+)\.)?("(?:[^"]|"")+"|[^".]+)')
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*")
_KEY_BYTE = re.compile(r"=([0-9A-F]{2})")


@dataclass(frozen=True, slots=True)
class Table:
    """A table. `str` returns the notation that `parse` reads.

    >>> Table.parse("users"), Table.parse('sales."odd.name"')
    (Table(schema='public', name='users'), Table(schema='sales', name='odd.name'))
    >>> print(Table("sales", "odd.name"), Table("sales", "odd.name").path)
    sales."odd.name" sales.odd%2Ename
    """

    schema: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `table` or `schema.table`. Special characters need double quotes."""
        match = _NAME.fullmatch(text)
        if match is None:
            raise ConfigError(
                f"{text!r} is not the name of a table",
                hint='Write users, sales.users or "odd.schema"."odd.table".',
            )
        return cls(_unquote(match[1]) if match[1] else "public", _unquote(match[2]))

    @classmethod
    def of_key(cls, key: str) -> Self:
        """The table of a key in the bucket `schemas`.

        >>> Table.of_key("sales=2Eusers")
        Table(schema='public', name='sales.users')
        """
        schema, dot, name = key.rpartition(".")
        return cls(_unescape(schema) if dot else "public", _unescape(name))

    @property
    def path(self) -> str:
        """The table in subjects: one token, or two outside the schema public."""
        return table_path(self.schema, self.name)

    @property
    def key(self) -> str:
        """The table's key in the bucket `schemas`; `of_key` reads it."""
        return table_key(self.schema, self.name)

    def __str__(self) -> str:
        name = _quote(self.name)
        return name if self.schema == "public" else f"{_quote(self.schema)}.{name}"


def _quote(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else '"{}"'.format(name.replace('"', '""'))


def _unquote(text: str) -> str:
    return text[1:-1].replace('""', '"') if text.startswith('"') else text


def _unescape(text: str) -> str:
    escaped = _KEY_BYTE.sub(lambda match: chr(int(match[1], 16)), text)
    return escaped.encode("latin-1").decode()
