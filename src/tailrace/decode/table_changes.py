"""The changes of one table in a range of the log, as groups of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.decode.decoder import Decoder
from tailrace.decode.merge import merged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.decode.group import Group
    from tailrace.log.reader import Log
    from tailrace.position import Position
    from tailrace.schema import Relation


def table_changes(log: Log, table: Relation, after: Position, upto: Position) -> Iterator[Group]:
    """The changes of one table in `(after, upto]`."""
    name = (table.namespace, table.name)
    decoder = Decoder(
        wanted=lambda relation: (relation.namespace, relation.name) == name,
        messages=lambda _prefix: False,
    )
    for entry in merged(log.read(after, upto)):
        yield from decoder.decode(entry, after, upto)
