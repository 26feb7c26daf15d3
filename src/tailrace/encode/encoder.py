"""Groups of changes → messages: ids, payloads, keys and destinations as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tailrace import headers
from tailrace.decode import columns
from tailrace.decode.hashes import hash_of_name, hash_of_table
from tailrace.encode.facts import Origin
from tailrace.encode.keys import former_keys, keys
from tailrace.encode.pieces import where
from tailrace.jetstream.names import MESSAGES as MESSAGE_SCHEMA
from tailrace.message import GROUP, MESSAGES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tailrace.decode.group import Group
    from tailrace.encode.layout import Layout
    from tailrace.sinks.destination import Template

__all__ = ["Encoder", "Origin"]


class Encoder:
    """Encodes groups. Holds no state between them and may be pickled."""

    def __init__(
        self,
        *,
        layout: Layout,
        destinations: Template,
        origin: Origin,
    ) -> None:
        self._layout = layout
        self._template = destinations
        self._origin = origin

    def encode(
        self,
        group: Group,
        *,
        destination: pa.BinaryArray | None = None,
        key: pa.BinaryArray | None = None,
    ) -> pa.RecordBatch:
        """One message per change, in the group's order.

        `destination` and `key` replace the template's destination and the row's key; where a
        destination is null, the template's is used. Text that is not UTF-8 raises `PoisonedError`.
        """
        if not len(group):
            return pa.RecordBatch.from_pylist([], schema=MESSAGES)
        if destination is None or destination.null_count == len(group):
            destination = self._destinations(group)
        elif destination.null_count:
            default = _column(self._destinations(group), len(group))
            destination = where(columns.valid(destination), destination, default)
        ids, payload = self._layout.messages(group, self._origin, destination)
        return pa.RecordBatch.from_arrays(
            [
                _column(destination, len(group)),
                ids,
                keys(group) if key is None else key,
                payload,
                pa.array(group.lsn),
                pa.array(group.ordinal),
                pa.array(group.committed_at),
                pa.array(_scopes(group)),
                pa.nulls(len(group), pa.binary()) if key is not None else former_keys(group),
                headers.none(len(group)),
                pa.nulls(len(group), GROUP),
            ],
            schema=MESSAGES,
        )

    def _destinations(self, group: Group) -> str | pa.BinaryArray:
        if group.relation is not None:
            return self._template.of(group.relation, group.op)
        assert group.prefixes is not None
        coded = group.prefixes.dictionary_encode()
        subjects = [
            self._template.fill(MESSAGE_SCHEMA, prefix, group.op).encode()
            for prefix in coded.dictionary.to_pylist()
        ]
        return pa.array(subjects, pa.binary()).take(coded.indices)


def _scopes(group: Group) -> NDArray[np.uint64]:
    """A hash of the table's name, or of the prefix of a logical message, for each change."""
    if group.prefixes is None:
        return np.full(len(group), hash_of_table(group.relation))
    coded = group.prefixes.dictionary_encode()
    names = coded.dictionary.to_pylist()
    hashes = np.array([hash_of_name(name) for name in names], np.uint64)
    return np.asarray(hashes[coded.indices.to_numpy()])


def _column(destination: str | pa.BinaryArray, count: int) -> pa.BinaryArray:
    if isinstance(destination, str):
        return pa.repeat(pa.scalar(destination.encode(), pa.binary()), count)
    return destination
