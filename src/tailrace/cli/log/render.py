"""Renders a change as text or JSON: `render_text`, `render_transaction`, `to_json`, `json_line`.

Pure functions over one change; `tailrace.cli.log.printer` writes the output. Row data is untrusted
and shown on an operator's terminal, so nothing is interpreted as markup and all control characters
are escaped.
"""

from __future__ import annotations

import base64
import json
import re
from datetime import UTC
from typing import TYPE_CHECKING, Any, assert_never

from rich.text import Text

from tailrace.change import ABSENT, UNCHANGED, Binary, Change, Missing, Op
from tailrace.errors import MalformedError
from tailrace.schema import ReplicaIdentity

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from tailrace.change import Row, Value
    from tailrace.schema import Column

STYLES = {
    Op.INSERT: "green",
    Op.UPDATE: "yellow",
    Op.DELETE: "red",
    Op.TRUNCATE: "magenta",
    Op.MESSAGE: "cyan",
    Op.READ: "blue",
}

_VALUE_CHARACTERS = 60
_MAX_LINES = 6
_INDENT = 4
_GAP = "  "
_NULL, _UNCHANGED, _NO_CHANGE = "NULL", "⟨unchanged⟩", "no column changed"
# Controls (C0, DEL, C1), direction overrides and marks, line and paragraph separators, tags.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]"
)
_SHORT_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def to_json(change: Change) -> dict[str, Any]:
    """A change as plain JSON values.

    Values are PostgreSQL's text, NULL is null. Values that PostgreSQL did not send are left out:
    `unchanged` names unchanged TOAST values of an update, and `before` has only the columns of the
    replica identity.
    """
    fields: dict[str, Any] = {
        "id": change.position.event_id,
        "lsn": str(change.position.lsn),
        "ordinal": change.position.ordinal,
        "xid": change.xid,
        "committed_at": _time(change.committed_at, "T"),
        "op": change.op.value,
        "schema": change.relation.namespace if change.relation else None,
        "table": change.relation.name if change.relation else None,
        "key": _json_row(_key(change)),
        "before": None if change.before is None else _json_row(_cells(change, change.before)),
        "after": None if change.after is None else _json_row(_cells(change, change.after)),
        "unchanged": [column.name for column, value in _after(change) if value is UNCHANGED],
    }
    if change.op is Op.MESSAGE:
        fields |= {"prefix": change.prefix, **_json_content(change.content)}
    if change.op is Op.TRUNCATE:
        fields |= {"cascade": change.cascade, "restart_identity": change.restart_identity}
    if change.origin:
        fields["origin"] = change.origin
    return fields


def json_line(change: Change) -> str:
    """`to_json` on one line, safe to show on a terminal: control characters are escaped."""
    line = json.dumps(to_json(change), ensure_ascii=False, separators=(",", ":"))
    # json escapes C0 only. All other unsafe characters are inside of strings.
    return _UNSAFE.sub(lambda match: json.dumps(match[0])[1:-1], line)


def _time(moment: datetime, separator: str) -> str:
    text = moment.astimezone(UTC).isoformat(sep=separator, timespec="microseconds")
    return text.removesuffix("+00:00") + "Z"


def _cells(change: Change, row: Row) -> list[tuple[Column, Value]]:
    """A row's columns with their values."""
    columns = change.relation.columns if change.relation else ()
    if len(columns) != len(row):
        raise MalformedError(
            f"change {change.position.event_id} has {len(row)} columns, "
            f"its relation has {len(columns)}"
        )
    return list(zip(columns, row, strict=True))


def _after(change: Change) -> list[tuple[Column, Value]]:
    return [] if change.after is None else _cells(change, change.after)


def _key(change: Change) -> list[tuple[Column, Value]]:
    """The replica identity of the old row, or of the new row if the old one was not sent."""
    row = change.before if change.before is not None else change.after
    return [] if row is None else [cell for cell in _cells(change, row) if cell[0].key]


def _json_row(cells: list[tuple[Column, Value]]) -> dict[str, str | None]:
    return {
        column.name: _string(value) for column, value in cells if not isinstance(value, Missing)
    }


def _json_content(content: bytes) -> dict[str, str]:
    try:
        return {"content": content.decode(), "content_encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"content": base64.b64encode(content).decode(), "content_encoding": "base64"}


def _string(value: bytes | Binary | None) -> str | None:
    match value:
        case None:
            return None
        case Binary(data):
            return f"\\x{data.hex()}"
        case bytes():
            # A SQL_ASCII database may send any bytes.
            return value.decode(errors="backslashreplace")
        case _:
            assert_never(value)


def render_transaction(change: Change) -> Text:
    """The header line of a transaction."""
    transaction = f"xid {change.xid}" if change.xid else "outside any transaction"
    parts = [_time(change.committed_at, " "), transaction, str(change.position.lsn)]
    if change.origin:
        parts.append(f"origin {escape(change.origin)}")
    return Text(f"── {' · '.join(parts)}", style="dim")


def render_text(change: Change, *, width: int | None) -> Text:
    """A change on one line, or on a few of at most `width` columns."""
    style = STYLES[change.op]
    table = change.relation.qualified_name if change.relation else change.prefix
    head = Text.assemble((f"{change.op.name:8} ", f"bold {style}"), (escape(table), "bold"))
    return _laid_out(head, list(_words(change, style)), width)


def escape(text: str) -> str:
    r"""`text` with visible escapes in place of control characters.

    >>> print(escape("a\x1b[2Jb"))
    a\x1b[2Jb
    """
    return _UNSAFE.sub(_visible, text)


def _visible(match: re.Match[str]) -> str:
    character = match[0]
    return _SHORT_ESCAPES.get(character) or character.encode("unicode_escape").decode()


def _words(change: Change, style: str) -> Iterator[Text]:
    match change.op:
        case Op.UPDATE:
            yield from _difference(change, style)
        case Op.INSERT | Op.READ:
            yield from (_cell(column, value) for column, value in _after(change))
        case Op.DELETE:
            for column, value in [] if change.before is None else _cells(change, change.before):
                if value is not ABSENT:
                    yield _cell(column, value)
        case Op.TRUNCATE:
            yield from (
                Text(word, style="dim")
                for word, present in (
                    ("CASCADE", change.cascade),
                    ("RESTART IDENTITY", change.restart_identity),
                )
                if present
            )
        case Op.MESSAGE:
            yield _shown(change.content)
        case _:
            assert_never(change.op)


def _difference(change: Change, style: str) -> Iterator[Text]:
    """The key and the changed columns if the old row is known, else the new row."""
    olds: Row = change.before if change.before is not None else (ABSENT,) * len(change.after or ())
    # Under REPLICA IDENTITY FULL every column counts as key; the first one identifies the row.
    whole = change.relation is not None and change.relation.replica_identity is ReplicaIdentity.FULL
    changed = False
    for number, ((column, old), (_, new)) in enumerate(
        zip(_cells(change, olds), _after(change), strict=True)
    ):
        if old is not ABSENT and old != new:
            changed = True
            yield Text.assemble(
                *(_name(column), _shown(old, "dim"), (" → ", "dim"), _shown(new, style))
            )
        elif old is ABSENT or (column.key and not whole) or number == 0:
            changed = changed or old is ABSENT
            yield _cell(column, new)
    if not changed:
        yield Text(_NO_CHANGE, style="dim")


def _cell(column: Column, value: Value) -> Text:
    return Text.assemble(_name(column), _shown(value))


def _name(column: Column) -> tuple[str, str]:
    return f"{escape(column.name)}: ", "bold" if column.key else "dim"


def _shown(value: Value, style: str = "") -> Text:
    match value:
        case None:
            return Text(_NULL, style="dim")
        case Missing():
            return Text(_UNCHANGED, style="dim")
        case Binary(data):
            return _shortened(f"\\x{data[:_VALUE_CHARACTERS].hex()}", len(data), style)
        case bytes():
            # A character has at most four bytes in UTF-8; the whole value may have a gigabyte.
            start = value[: 4 * _VALUE_CHARACTERS].decode(errors="backslashreplace")
            return _shortened(escape(start), len(value), style)
        case _:
            assert_never(value)


def _shortened(text: str, size_bytes: int, style: str) -> Text:
    if len(text) > _VALUE_CHARACTERS:
        cut = text[:_VALUE_CHARACTERS]
        return Text.assemble((cut, style), (f"… ({size_bytes:,} bytes)", "dim"))
    # Quote text that could be confused with a marker or with empty space.
    plain = text == text.strip() and text not in {"", _NULL, _UNCHANGED, _NO_CHANGE}
    return Text(text if plain else f"'{text}'", style=style)


def _laid_out(head: Text, words: list[Text], width: int | None) -> Text:
    """The head and the words, folded to `width`, on at most `_MAX_LINES` lines."""
    lines = [head]
    for number, word in enumerate(words):
        full = width is not None and lines[-1].cell_len + len(_GAP) + word.cell_len > width
        if full and len(lines) == _MAX_LINES:
            lines[-1].append(f"{_GAP}… {len(words) - number} more", style="dim")
            break
        if full:
            lines.append(Text(" " * _INDENT).append_text(word))
        else:
            lines[-1].append(_GAP).append_text(word)
    return Text("\n").join(lines)
