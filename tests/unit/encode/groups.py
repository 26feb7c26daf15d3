"""Groups for tests: from literal columns, and from changes of the reference decoder."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import orjson
import pyarrow as pa

from tailrace.change import Change, Missing, Op, Row
from tailrace.decode.group import Cells, Group, Image
from tailrace.encode.facts import Origin
from tailrace.encode.shapes.registry import SHAPES
from tailrace.schema import Column, Relation, ReplicaIdentity, TypeName
from tailrace.sinks.nats.destination import SubjectTemplate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.encode.shapes.shape_type import Encoding, GroupEncoder

ORIGIN = Origin(database="shop", system_identifier=7_000_000_000_000_000_001, slot="tailrace")
COMMITTED_AT = 1_765_540_834_338_547
"""2025-12-12T12:00:34.338547Z."""


def table(
    *columns: Column, namespace: str = "public", name: str = "users", **more: Any
) -> Relation:
    more.setdefault("replica_identity", ReplicaIdentity.DEFAULT)
    return Relation(oid=16392, namespace=namespace, name=name, columns=columns, **more)


def image(*columns: Sequence[object] | None) -> Image:
    """Columns of bytes, None for NULL and UNCHANGED; None for an absent column."""
    return tuple(None if column is None else cells(column) for column in columns)


def cells(column: Sequence[object]) -> Cells:
    values = [value if isinstance(value, bytes) else None for value in column]
    unchanged = np.array([value is Missing.UNCHANGED for value in column])
    return Cells(pa.array(values, pa.binary()), unchanged if unchanged.any() else None)


def group(op: Op, relation: Relation | None, count: int, **more: Any) -> Group:
    """Changes of one transaction."""
    more.setdefault("lsn", np.full(count, 0x191BFD0, np.uint64))
    more.setdefault("ordinal", np.arange(count, dtype=np.uint64))
    more.setdefault("xid", np.full(count, 742, np.uint32))
    more.setdefault("committed_at", np.full(count, COMMITTED_AT, np.int64))
    return Group(op=op, relation=relation, **more)


def groups_of(changes: Sequence[Change], types: dict[int, TypeName]) -> list[Group]:
    """Changes as groups, one per run of changes of the same kind."""
    runs: list[list[Change]] = []
    for change in changes:
        if runs and _likeness(runs[-1][0]) == _likeness(change):
            runs[-1].append(change)
        else:
            runs.append([change])
    return [_group_of(run, types) for run in runs]


def _likeness(change: Change) -> object:
    return change.op, change.relation, _absent(change.before), _absent(change.after)


def _absent(row: Row | None) -> tuple[bool, ...] | None:
    return None if row is None else tuple(value is Missing.ABSENT for value in row)


def _group_of(changes: list[Change], types: dict[int, TypeName]) -> Group:
    first = changes[0]
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    is_message = first.op is Op.MESSAGE
    return Group(
        op=first.op,
        relation=first.relation,
        types=types,
        lsn=np.array([change.position.lsn for change in changes], np.uint64),
        ordinal=np.array([change.position.ordinal for change in changes], np.uint64),
        xid=np.array([change.xid for change in changes], np.uint32),
        committed_at=np.array(
            [(change.committed_at - epoch) // timedelta(microseconds=1) for change in changes],
            np.int64,
        ),
        before=_image_of([change.before for change in changes]),
        after=_image_of([change.after for change in changes]),
        prefixes=pa.array([change.prefix for change in changes]) if is_message else None,
        contents=pa.array([change.content for change in changes], pa.binary())
        if is_message
        else None,
    )


def _image_of(rows: list[Row | None]) -> Image | None:
    known = [row for row in rows if row is not None]
    if not known:
        return None
    return tuple(
        None if column[0] is Missing.ABSENT else cells(column)
        for column in zip(*known, strict=True)
    )


def encoder(
    shape: str, encoding: Encoding, subject: str = "cdc.{table}.{operation}"
) -> GroupEncoder:
    return SHAPES.find(shape).encoder(
        encoding,
        destinations=SubjectTemplate(subject, database=ORIGIN.database),
        origin=ORIGIN,
    )


def decoded(payload: bytes, encoding: Encoding) -> Any:
    """Decode a payload with an independent decoder."""
    return orjson.loads(payload) if encoding == "json" else msgspec.msgpack.decode(payload)


def messages(made: Group, shape: str, encoding: Encoding) -> list[Any]:
    """The decoded payloads of a group."""
    batch = encoder(shape, encoding).encode(made)
    batch.validate(full=True)
    return [decoded(payload, encoding) for payload in batch["payload"].to_pylist()]
