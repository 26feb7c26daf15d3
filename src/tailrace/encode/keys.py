"""Message keys: what keeps changes of one row together at a sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from tailrace.encode.pieces import Piece, join
from tailrace.encode.rows import Rows
from tailrace.encode.syntaxes.json import Json

if TYPE_CHECKING:
    from tailrace.decode.group import Group


def keys(group: Group) -> pa.BinaryArray:
    """PostgreSQL's text of a single key column; a JSON array of the texts of several; or null.

    An update that changes the key has the new one.
    """
    count, json = len(group), Json()
    if group.relation is None:
        return pa.nulls(count, pa.binary())
    found = [values for _, _, values in Rows(group, json, native=False).key_columns()]
    if len(found) < 2:
        return found[0] if found else pa.nulls(count, pa.binary())
    pieces: list[Piece] = []
    for values in found:
        pieces += [b"," if pieces else b"[", *json.text(values)]
    return join([*pieces, b"]"], null=json.null)
