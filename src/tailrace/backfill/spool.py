"""The spool: pages of a backfill on disk, until the pipeline has delivered them.

A page has two files: its rows (`.arrow`) and its facts (`.json`). The facts include what the page's
transaction saw, so that `tailrace.backfill.handover` can tell which rows newer changes replace. The
facts are written after the rows: a page that the spool lists always has its rows.
"""

from __future__ import annotations

import base64
import json
import os
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from tailrace import private
from tailrace.decode.group import Cells
from tailrace.errors import CorruptError
from tailrace.log.store import LocalStore, raise_translated
from tailrace.position import Lsn, Position
from tailrace.schema import Relation, TypeName
from tailrace.snapshot.table import Table
from tailrace.visibility import Visibility
from tailrace.wire import pgoutput

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tailrace.decode.group import Image

_FACTS = ".json"
_ROWS = ".arrow"
_PACKING = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Rows of one table, read in one transaction."""

    number: int
    """Monotonic page number within the pipeline."""
    backfill: str
    table: Table
    key: tuple[str, ...]
    """The columns that identify a row. Empty: the page holds the whole table."""
    visibility: Visibility
    lsn: Lsn
    """Everything that the page sees was committed before this LSN."""
    taken_at: datetime
    since: Position
    """Every change that the page does not see is in the log after this position."""
    rows: int
    size: int
    """Bytes on disk."""
    read: int
    """Rows of the backfill up to and including this page."""
    cursor: tuple[str, ...]
    """The key of its last row."""
    last: bool
    """Whether this is the last page of the backfill."""

    def dump(self) -> bytes:
        """The page's facts as JSON."""
        messages: list[Relation | TypeName] = [self.table.relation, *self.table.types.values()]
        return json.dumps(
            {
                "number": self.number,
                "backfill": self.backfill,
                "table": [base64.b64encode(pgoutput.write(each)).decode() for each in messages],
                "key": self.key,
                "visibility": str(self.visibility),
                "lsn": str(self.lsn),
                "taken_at": self.taken_at.isoformat(),
                "since": str(self.since),
                "rows": self.rows,
                "size": self.size,
                "read": self.read,
                "cursor": self.cursor,
                "last": self.last,
            }
        ).encode()

    @classmethod
    def load(cls, text: str | bytes) -> Self:
        """Parse the output of `dump`."""
        fields: dict[str, Any] = json.loads(text)
        relation, *types = (pgoutput.parse(base64.b64decode(each)) for each in fields["table"])
        assert isinstance(relation, Relation)
        type_names = {each.oid: each for each in types if isinstance(each, TypeName)}
        return cls(
            **fields
            | {
                "table": Table(relation=relation, types=type_names),
                "key": tuple(fields["key"]),
                "visibility": Visibility.parse(fields["visibility"]),
                "lsn": Lsn.parse(fields["lsn"]),
                "taken_at": datetime.fromisoformat(fields["taken_at"]),
                "since": Position.parse(fields["since"]),
                "cursor": tuple(fields["cursor"]),
            }
        )


def spool_of(data: Path, pipeline: str) -> Path:
    """The spool folder of a pipeline within the data folder."""
    return data / "backfills" / pipeline / "spool"


class Spool:
    """The pages of one pipeline, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def numbers(self, after: int = 0) -> list[int]:
        """The numbers of the pages after a number, in order."""
        with suppress(FileNotFoundError):
            names = (entry.name for entry in os.scandir(self._folder))
            numbers = (int(name[:-5]) for name in names if name.endswith(_FACTS))
            return sorted(number for number in numbers if number > after)
        return []

    def pages(self, after: int = 0, upto: int | None = None) -> list[Page]:
        """The pages with numbers in `(after, upto]`."""
        numbers = self.numbers(after)
        return [self.page(number) for number in numbers if upto is None or number <= upto]

    def page(self, number: int) -> Page:
        """The facts of one page."""
        try:
            return Page.load((self._folder / f"{number:012}{_FACTS}").read_bytes())
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise CorruptError(
                f"cannot read page {number} of the backfill spool {self._folder}: {error}",
                hint="Restore the data folder from a backup; its files must not be edited.",
            ) from error

    def write(self, number: int, blocks: Iterable[tuple[int, Image]]) -> tuple[int, int]:
        """Write a page's rows; their count and bytes. The spool lists the page after `add`."""
        count = 0
        try:
            private.create_folder(self._folder)
            with private.create_file(self._rows(number)) as file:
                with closing(_Writer(file)) as writer:
                    for rows, image in blocks:
                        count += rows
                        writer.write(rows, image)
                file.flush()
                os.fsync(file.fileno())
                return count, file.tell()
        except OSError as error:
            # Half a page would use the space that others need until it is written again.
            self._rows(number).unlink(missing_ok=True)
            raise_translated(error, f"cannot write a page to {self._folder}")

    def add(self, page: Page) -> None:
        """Write the page's facts, durably: the pipeline can now deliver it."""
        LocalStore(self._folder).write_atomic(f"{page.number:012}{_FACTS}", page.dump())

    def read(self, page: Page) -> Iterator[tuple[int, Image]]:
        """The rows of a page, in the blocks in which they were written: count and cells."""
        try:
            with pa.memory_map(str(self._rows(page.number))) as file:
                stream = pa.ipc.open_stream(file)
                for batch in stream:
                    cells = (Cells(batch.column(name)) for name in batch.schema.names[1:])
                    yield batch.num_rows, tuple(cells)
        except (OSError, pa.ArrowInvalid) as error:
            raise CorruptError(
                f"cannot read the rows of page {page.number} in {self._folder}: {error}",
                hint="Restore the data folder from a backup; its files must not be edited.",
            ) from error

    def remove(self, number: int) -> None:
        """Remove a page: first its facts, then its rows."""
        (self._folder / f"{number:012}{_FACTS}").unlink(missing_ok=True)
        self._rows(number).unlink(missing_ok=True)

    def sweep(self, after: int) -> None:
        """Remove rows of pages after a number whose facts were never written."""
        known = set(self.numbers())
        for path in self._folder.glob(f"*{_ROWS}"):
            if int(path.stem) > after and int(path.stem) not in known:
                path.unlink()

    def _rows(self, number: int) -> Path:
        return self._folder / f"{number:012}{_ROWS}"


class _Writer:
    """Writes cells to an Arrow stream. The first column is null: it carries the row count."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._stream: pa.ipc.RecordBatchStreamWriter | None = None

    def write(self, rows: int, image: Image) -> None:
        columns = [pa.nulls(rows), *(cells.values for cells in image if cells is not None)]
        batch = pa.RecordBatch.from_arrays(columns, [str(at) for at in range(len(columns))])
        if self._stream is None:
            self._stream = pa.ipc.new_stream(self._file, batch.schema, options=_PACKING)
        self._stream.write_batch(batch)

    def close(self) -> None:
        if self._stream is None:
            self._stream = pa.ipc.new_stream(self._file, pa.schema([("0", pa.null())]))
        self._stream.close()
