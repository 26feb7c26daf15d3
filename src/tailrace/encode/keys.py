"""Message keys: a sink keeps messages with the same key in order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from tailrace.change import Op
from tailrace.encode.pieces import Piece, join
from tailrace.encode.rows import Rows
from tailrace.encode.syntaxes.json import Json

if TYPE_CHECKING:
    from tailrace.decode.group import Group


def keys(group: Group) -> pa.BinaryArray:
    """PostgreSQL's text of a single key column; a JSON array of the texts of several; or null.

    The key of an update is the new one. Key (7) is `7`, key (7, 'a') is `["7","a"]`.
    """
    count, json = len(group), Json()
    if group.relation is None:
        return pa.nulls(count, pa.binary())
    texts = [values for _, _, values in Rows(group, json, native=False).key_columns()]
    if len(texts) < 2:
        return texts[0] if texts else pa.nulls(count, pa.binary())
    pieces: list[Piece] = []
    for values in texts:
        pieces += [b"," if pieces else b"[", *json.text(values)]
    return join([*pieces, b"]"], null=json.null)


def former_keys(group: Group) -> pa.BinaryArray:
    """The old keys of updates that changed them, and null for all other changes."""
    if group.op is not Op.UPDATE or group.before is None:
        return pa.nulls(len(group), pa.binary())
    return keys(replace(group, after=None))
