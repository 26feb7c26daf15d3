"""The columnar decoder's output as changes, to hold it against the message-at-a-time decoder."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tailrace.change import ABSENT, UNCHANGED, Change
from tailrace.decode.decoder import Decoder
from tailrace.decode.merge import merged
from tailrace.position import Lsn, Position

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tailrace.change import Row, Value
    from tailrace.decode.group import Group, Image
    from tailrace.log.format.entry import Entry

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def columnar(
    entries: Iterable[Entry],
    after: Position | None = None,
    upto: Position | None = None,
    *,
    target_bytes: int = 0,
) -> list[Change]:
    """All changes, in order of position; with `target_bytes`, of entries merged up to that size."""
    decoder = Decoder()
    found = []
    for entry in merged(entries, target_bytes) if target_bytes else entries:
        groups = decoder.decode(entry, after, upto)
        found += sorted(
            (change for group in groups for change in changes_of(group)),
            key=lambda change: change.position,
        )
    return found


def changes_of(group: Group) -> Iterator[Change]:
    befores = _rows(group.before, len(group))
    afters = _rows(group.after, len(group))
    for row in range(len(group)):
        yield Change(
            position=Position(Lsn(int(group.lsn[row])), int(group.ordinal[row])),
            op=group.op,
            xid=int(group.xid[row]),
            committed_at=_EPOCH + timedelta(microseconds=int(group.committed_at[row])),
            relation=group.relation,
            before=befores[row],
            after=afters[row],
            prefix="" if group.prefixes is None else group.prefixes[row].as_py(),
            content=b"" if group.contents is None else group.contents[row].as_py(),
        )


def plain(changes: Iterable[Change]) -> list[Change]:
    """Without what groups do not carry."""
    return [replace(change, origin="", cascade=False, restart_identity=False) for change in changes]


def _rows(image: Image | None, count: int) -> list[Row | None]:
    if image is None:
        return [None] * count
    columns = [
        [ABSENT] * count
        if cells is None
        else [
            _value(value, cells.unchanged is not None and bool(cells.unchanged[row]))
            for row, value in enumerate(cells.values.to_pylist())
        ]
        for cells in image
    ]
    return [tuple(column[row] for column in columns) for row in range(count)]


def _value(value: bytes | None, unchanged: bool) -> Value:
    return UNCHANGED if unchanged else value
