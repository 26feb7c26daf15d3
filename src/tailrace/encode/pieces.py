"""Messages as sequences of pieces: constants, columns, and columns with one value per transaction.

A message is the concatenation of its row's pieces. Nothing is copied before `join`, which runs once
for the whole group in Arrow's C++ code. A null in a column means the encoding's null.

>>> import numpy as np, pyarrow as pa
>>> runs = Runs.of(np.array([5, 5, 9]))
>>> lsn = PerRun(pa.array([b"5", b"9"], pa.binary()), runs)
>>> ids = pa.array([b"1", None, b"3"], pa.binary())
>>> join([b'{"lsn":', lsn, b',"id":', ids, b"}"], null=b"null").to_pylist()
[b'{"lsn":5,"id":1}', b'{"lsn":5,"id":null}', b'{"lsn":9,"id":3}']
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.decode.columns import constant

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

_SEPARATOR = constant(b"")
"""`binary_join_element_wise` takes the separator as its last argument."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of rows with the same transaction facts.

    `starts` is the first row of each run, `index` the run of each row; None if every run has one
    row.
    """

    starts: NDArray[np.int64]
    index: pa.Int64Array | None

    @classmethod
    def of(cls, *facts: NDArray[np.generic]) -> Runs:
        """Runs of rows that are equal in all facts."""
        count = len(facts[0])
        new = np.zeros(count, bool)
        new[:1] = True
        for fact in facts:
            new[1:] |= fact[1:] != fact[:-1]
        starts = np.flatnonzero(new)
        index = None if len(starts) == count else pa.array(np.cumsum(new) - 1)
        return cls(starts, index)

    def spread(self, pieces: Pieces) -> Pieces:
        """Pieces with one value per run as pieces for the rows."""
        return tuple(
            PerRun(piece, self) if isinstance(piece, pa.Array) else piece for piece in pieces
        )

    def take(self, values: pa.Array) -> pa.Array:
        """Expand a column with one value per run to one value per row."""
        return values if self.index is None else values.take(self.index)


@dataclass(frozen=True, slots=True)
class PerRun:
    """A column with one value per run of rows."""

    values: pa.BinaryArray
    runs: Runs


Piece: TypeAlias = "bytes | pa.BinaryArray | PerRun"
Pieces: TypeAlias = tuple[Piece, ...]


def join(pieces: Iterable[Piece], *, null: bytes = b"") -> pa.BinaryArray:
    """Concatenate the pieces of each row. At least one piece must be a column."""
    return _joined(_per_row(_merged(pieces), null), null)


def _merged(pieces: Iterable[Piece]) -> list[Piece]:
    """Concatenate adjacent constants."""
    merged: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += piece
        elif not isinstance(piece, bytes) or piece:
            merged.append(piece)
    return merged


def _per_row(pieces: list[Piece], null: bytes) -> list[bytes | pa.BinaryArray]:
    """Join adjacent pieces that are constant within a run once per run, then expand them.

    A transaction of a thousand rows formats its LSN, xid and time once.
    """
    rows: list[bytes | pa.BinaryArray] = []
    for per_row, adjacent in groupby(pieces, key=lambda piece: isinstance(piece, pa.Array)):
        members = list(adjacent)
        runs = next((piece.runs for piece in members if isinstance(piece, PerRun)), None)
        if per_row or runs is None:
            rows.extend(piece for piece in members if not isinstance(piece, PerRun))
        else:
            parts = [piece.values if isinstance(piece, PerRun) else piece for piece in members]
            rows.append(runs.take(_joined(parts, null)))
    return rows


def _joined(pieces: Sequence[bytes | pa.BinaryArray], null: bytes) -> pa.BinaryArray:
    parts = [constant(piece) if isinstance(piece, bytes) else piece for piece in pieces]
    return pc.binary_join_element_wise(
        *parts, _SEPARATOR, null_handling="replace", null_replacement=null
    )


def where(
    mask: NDArray[np.bool_], this: bytes | pa.BinaryArray, other: bytes | pa.BinaryArray
) -> pa.BinaryArray:
    """A column with `this` where the mask is true and `other` elsewhere."""
    sides = [constant(side) if isinstance(side, bytes) else side for side in (this, other)]
    return pc.if_else(pa.array(mask), *sides)


def only(present: NDArray[np.bool_], pieces: Iterable[Piece], *, null: bytes) -> pa.BinaryArray:
    """The pieces as a column that is empty in the rows where they are not present."""
    merged = _merged(pieces)
    match merged:
        case [bytes() as constant]:
            return where(present, constant, b"")
        case _:
            return where(present, join(merged, null=null), b"")
