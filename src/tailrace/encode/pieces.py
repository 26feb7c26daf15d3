"""Rows of bytes as joins of pieces: constants, columns, and columns with one value a transaction.

A message is the pieces of its row one after another. Nothing is copied until `join`, which runs
once over the whole group. A null in a column stands for the encoding's own null.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

_BINARY = pa.binary()
_NOTHING = pa.scalar(b"", _BINARY)


@dataclass(frozen=True, slots=True)
class Runs:
    """Which rows share the facts of a transaction. `index` is None when no two do."""

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
        """Pieces made for the runs, as pieces for the rows."""
        return tuple(
            PerRun(piece, self) if isinstance(piece, pa.Array) else piece for piece in pieces
        )

    def take(self, values: pa.Array) -> pa.Array:
        """A column with a value a run as a column with a value a row."""
        return values if self.index is None else values.take(self.index)


@dataclass(frozen=True, slots=True)
class PerRun:
    """A column with one value a run of rows."""

    values: pa.BinaryArray
    runs: Runs


Piece: TypeAlias = "bytes | pa.BinaryArray | PerRun"
Pieces: TypeAlias = tuple[Piece, ...]


def join(pieces: Iterable[Piece], *, null: bytes = b"") -> pa.BinaryArray:
    """The rows. At least one piece must be a column."""
    return _joined(_per_row(_merged(pieces), null), null)


def _merged(pieces: Iterable[Piece]) -> list[Piece]:
    """Neighbouring constants as one."""
    merged: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += piece
        elif not isinstance(piece, bytes) or piece:
            merged.append(piece)
    return merged


def _per_row(pieces: list[Piece], null: bytes) -> list[bytes | pa.BinaryArray]:
    """Stretches that are the same for all rows of a run, joined once a run."""
    rows: list[bytes | pa.BinaryArray] = []
    for plain, stretch in groupby(pieces, key=lambda piece: isinstance(piece, pa.Array)):
        members = list(stretch)
        runs = next((piece.runs for piece in members if isinstance(piece, PerRun)), None)
        if plain or runs is None:
            rows.extend(piece for piece in members if not isinstance(piece, PerRun))
        else:
            parts = [piece.values if isinstance(piece, PerRun) else piece for piece in members]
            rows.append(runs.take(_joined(parts, null)))
    return rows


def _joined(pieces: Sequence[bytes | pa.BinaryArray], null: bytes) -> pa.BinaryArray:
    parts = [pa.scalar(piece, _BINARY) if isinstance(piece, bytes) else piece for piece in pieces]
    return pc.binary_join_element_wise(
        *parts, _NOTHING, null_handling="replace", null_replacement=null
    )


def where(
    mask: NDArray[np.bool_], this: bytes | pa.BinaryArray, other: bytes | pa.BinaryArray
) -> pa.BinaryArray:
    """A column of `this` where the mask is true and of `other` elsewhere."""
    sides = [
        pa.scalar(side, _BINARY) if isinstance(side, bytes) else side for side in (this, other)
    ]
    return pc.if_else(pa.array(mask), *sides)


def only(present: NDArray[np.bool_], pieces: Iterable[Piece], *, null: bytes) -> pa.BinaryArray:
    """The pieces as a column, with nothing in the rows where they are not present."""
    merged = _merged(pieces)
    match merged:
        case [bytes() as constant]:
            return where(present, constant, b"")
        case _:
            return where(present, join(merged, null=null), b"")
