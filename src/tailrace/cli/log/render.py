"""Renders a change as text or JSON: `render_text`, `render_transaction`, `json_line`.

Pure functions over one change; `tailrace.cli.log.printer` writes the output. Row data is untrusted
and shown on an operator's terminal, so nothing is interpreted as markup and all control characters
are escaped.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, assert_never

from rich.text import Text

from tailrace.change import ABSENT, Binary, Change, Missing, Op
from tailrace.log.documents import after_cells, cells, time_text, to_json
from tailrace.schema import ReplicaIdentity

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def json_line(change: Change) -> str:
    """`to_json` on one line, safe to show on a terminal: control characters are escaped."""
    line = json.dumps(to_json(change), ensure_ascii=False, separators=(",", ":"))
    # json escapes C0 only. All other unsafe characters are inside of strings.
    return _UNSAFE.sub(lambda match: json.dumps(match[0])[1:-1], line)


def render_transaction(change: Change) -> Text:
    """The header line of a transaction."""
    transaction = f"xid {change.xid}" if change.xid else "outside any transaction"
    parts = [time_text(change.committed_at, " "), transaction, str(change.position.lsn)]
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
            yield from (_cell(column, value) for column, value in after_cells(change))
        case Op.DELETE:
            for column, value in [] if change.before is None else cells(change, change.before):
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
        zip(cells(change, olds), after_cells(change), strict=True)
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
