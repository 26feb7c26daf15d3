"""A change as JSON: what `tailrace tail --json`, `/api/v1/messages` and the console show."""

from __future__ import annotations

import base64
from datetime import UTC
from typing import TYPE_CHECKING, Any, assert_never

from tailrace.change import UNCHANGED, Binary, Change, Missing, Op
from tailrace.errors import MalformedError

if TYPE_CHECKING:
    from datetime import datetime

    from tailrace.change import Row, Value
    from tailrace.schema import Column


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
        "committed_at": time_text(change.committed_at, "T"),
        "op": change.op.value,
        "schema": change.relation.namespace if change.relation else None,
        "table": change.relation.name if change.relation else None,
        "key": _json_row(key_cells(change)),
        "before": None if change.before is None else _json_row(cells(change, change.before)),
        "after": None if change.after is None else _json_row(cells(change, change.after)),
        "unchanged": [column.name for column, value in after_cells(change) if value is UNCHANGED],
    }
    if change.op is Op.MESSAGE:
        fields |= {"prefix": change.prefix, **_json_content(change.content)}
    if change.op is Op.TRUNCATE:
        fields |= {"cascade": change.cascade, "restart_identity": change.restart_identity}
    if change.origin:
        fields["origin"] = change.origin
    return fields


def time_text(moment: datetime, separator: str) -> str:
    """A time in UTC, in microseconds."""
    text = moment.astimezone(UTC).isoformat(sep=separator, timespec="microseconds")
    return text.removesuffix("+00:00") + "Z"


def cells(change: Change, row: Row) -> list[tuple[Column, Value]]:
    """A row's columns with their values."""
    columns = change.relation.columns if change.relation else ()
    if len(columns) != len(row):
        raise MalformedError(
            f"change {change.position.event_id} has {len(row)} columns, "
            f"its relation has {len(columns)}"
        )
    return list(zip(columns, row, strict=True))


def after_cells(change: Change) -> list[tuple[Column, Value]]:
    """The new row's columns with their values."""
    return [] if change.after is None else cells(change, change.after)


def key_cells(change: Change) -> list[tuple[Column, Value]]:
    """The replica identity of the old row, or of the new row if the old one was not sent."""
    row = change.before if change.before is not None else change.after
    return [] if row is None else [cell for cell in cells(change, row) if cell[0].key]


def _json_row(cells: list[tuple[Column, Value]]) -> dict[str, str | None]:
    return {
        column.name: value_text(value) for column, value in cells if not isinstance(value, Missing)
    }


def _json_content(content: bytes) -> dict[str, str]:
    try:
        return {"content": content.decode(), "content_encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"content": base64.b64encode(content).decode(), "content_encoding": "base64"}


def value_text(value: bytes | Binary | None) -> str | None:
    """A value as PostgreSQL writes it."""
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
