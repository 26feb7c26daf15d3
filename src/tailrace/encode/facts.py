"""The facts of a change besides its row: id, LSN, transaction, commit time, annotations.

Most facts hold for a whole transaction. They are formatted once per run of rows with equal facts
and repeated over the rows when the message is joined (`pieces.Runs`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from tailrace.decode import columns
from tailrace.encode.pieces import PerRun, Pieces, Runs, join
from tailrace.encode.syntaxes import digits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tailrace.decode.group import Group
    from tailrace.encode.syntaxes.syntax import Syntax

    _T = TypeVar("_T", bound=np.generic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The database that changes come from, as messages name it."""

    database: str
    system_identifier: int
    slot: str = ""


@dataclass(frozen=True)
class Outline:
    """The facts of a group that do not depend on the encoding."""

    group: Group
    origin: Origin

    def __len__(self) -> int:
        return len(self.group)

    @cached_property
    def runs(self) -> Runs:
        """Runs of rows of one transaction."""
        return Runs.of(self.group.lsn, self.group.xid, self.group.committed_at)

    def each_run(self, facts: NDArray[_T]) -> NDArray[_T]:
        """The first value of each run: all rows of a run have the same."""
        return facts[self.runs.starts]

    @cached_property
    def ids(self) -> pa.BinaryArray:
        """`{commit_lsn:016x}-{ordinal}`, the permanent id of a change."""
        lsn = digits.padded_hex(self.each_run(self.group.lsn))
        return join([*self.runs.spread((lsn,)), b"-", self.ordinal_text])

    @cached_property
    def ordinal_text(self) -> pa.BinaryArray:
        """Ordinals in decimal."""
        return digits.decimal(self.group.ordinal)

    def id_with(self, middle: bytes | pa.BinaryArray) -> pa.BinaryArray:
        """`{commit_lsn:x}-{middle}-{ordinal}`."""
        lsn = digits.short_hex(self.each_run(self.group.lsn))
        return join([*self.runs.spread((lsn, b"-")), middle, b"-", self.ordinal_text])


@dataclass(frozen=True)
class Facts(Outline):
    """The facts of a group, encoded."""

    syntax: Syntax

    @cached_property
    def lsn_digits(self) -> PerRun:
        """The commit's LSN in decimal."""
        return PerRun(digits.decimal(self.each_run(self.group.lsn)), self.runs)

    @cached_property
    def lsn_text(self) -> Pieces:
        """The commit's LSN as PostgreSQL writes it."""
        text = digits.lsn_text(self.each_run(self.group.lsn))
        return self.runs.spread(self.syntax.plain(text))

    @cached_property
    def lsn_number(self) -> Pieces:
        """The commit's LSN as a number."""
        return self.runs.spread(self.syntax.integers(self.each_run(self.group.lsn)))

    @cached_property
    def xid(self) -> Pieces:
        """The transaction id; null for a logical message outside of a transaction."""
        xid = self.each_run(self.group.xid)
        pieces = self.syntax.integers(xid)
        if not xid.all():
            pieces = (columns.blanked(join(pieces), xid != 0),)
        return self.runs.spread(pieces)

    @cached_property
    def committed_at(self) -> Pieces:
        """The commit's time in ISO 8601."""
        text = digits.iso_time(self.each_run(self.group.committed_at))
        return self.runs.spread(self.syntax.plain(text))

    def committed(self, per_second: int) -> Pieces:
        """The commit time since 1970 in units of 1/`per_second` s: 1_000 means milliseconds."""
        micros = self.each_run(self.group.committed_at)
        scaled = (
            micros // (1_000_000 // per_second)
            if per_second <= 1_000_000
            else micros * (per_second // 1_000_000)
        )
        return self.runs.spread(self.syntax.integers(scaled))

    @cached_property
    def ordinal(self) -> Pieces:
        """The number of the change within its transaction."""
        return self.syntax.integers(self.group.ordinal)

    @cached_property
    def annotated(self) -> NDArray[np.bool_] | None:
        """Which rows have annotations; None if no row has any."""
        annotations = self.group.annotations
        if annotations is None or annotations.null_count == len(annotations):
            return None
        return columns.valid(annotations)

    @cached_property
    def annotations(self) -> Pieces:
        """Transaction annotations, or null. Few are distinct, so each is encoded once."""
        if self.annotated is None:
            return (self.syntax.null,)
        assert self.group.annotations is not None
        coded = self.group.annotations.cast(pa.binary()).dictionary_encode()
        documents = join(self.syntax.document(coded.dictionary), null=self.syntax.null)
        return (documents.take(coded.indices),)
