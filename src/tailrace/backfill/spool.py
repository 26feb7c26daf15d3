"""A page of a table on its way into a pipeline, kept in files until it is delivered.

A page is read in a transaction of its own, and what that one sees is written down with it: only so
can the pipeline tell, wherever in the stream the rows end up, which of them the stream has passed.
The facts are written after the rows, so whoever finds them finds the rows too.
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
    """Rows of one table as of one moment."""

    number: int
    """Of the pipeline's chunks, the how many-th; it only grows."""
    backfill: str
    table: Table
    key: tuple[str, ...]
    """Columns that tell rows apart. None: the chunk is the whole table."""
    visibility: Visibility
    lsn: Lsn
    """Everything it sees was committed before."""
    taken_at: datetime
    since: Position
    """What it does not see stands in the log behind this."""
    rows: int
    size: int
    """In bytes."""
    read: int
    """Rows of the backfill up to here, these included."""
    cursor: tuple[str, ...]
    """The key of its last row."""
    last: bool
    """Whether nothing comes behind it."""

    def dump(self) -> bytes:
        """As text."""
        stated: list[Relation | TypeName] = [self.table.relation, *self.table.types.values()]
        return json.dumps(
            {
                "number": self.number,
                "backfill": self.backfill,
                "table": [base64.b64encode(pgoutput.write(each)).decode() for each in stated],
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
        """Read what `dump` wrote."""
        fields: dict[str, Any] = json.loads(text)
        relation, *types = (pgoutput.parse(base64.b64decode(each)) for each in fields["table"])
        assert isinstance(relation, Relation)
        named = {each.oid: each for each in types if isinstance(each, TypeName)}
        return cls(
            **fields
            | {
                "table": Table(relation=relation, types=named),
                "key": tuple(fields["key"]),
                "visibility": Visibility.parse(fields["visibility"]),
                "lsn": Lsn.parse(fields["lsn"]),
                "taken_at": datetime.fromisoformat(fields["taken_at"]),
                "since": Position.parse(fields["since"]),
                "cursor": tuple(fields["cursor"]),
            }
        )


def spool_of(data: Path, pipeline: str) -> Path:
    """Where the chunks of a pipeline are kept in a data folder."""
    return data / "backfills" / pipeline / "spool"


class Spool:
    """The chunks of one pipeline, in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def numbers(self, after: int = 0) -> list[int]:
        """The chunks that are there behind a number."""
        with suppress(FileNotFoundError):
            found = (entry.name for entry in os.scandir(self._folder))
            numbers = (int(name[:-5]) for name in found if name.endswith(_FACTS))
            return sorted(number for number in numbers if number > after)
        return []

    def chunks(self, after: int = 0, upto: int | None = None) -> list[Page]:
        """Those behind a number, up to another."""
        numbers = self.numbers(after)
        return [self.chunk(number) for number in numbers if upto is None or number <= upto]

    def chunk(self, number: int) -> Page:
        """One of them."""
        try:
            return Page.load((self._folder / f"{number:012}{_FACTS}").read_bytes())
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise CorruptError(
                f"chunk {number} of a backfill is not to be read: {error}",
                hint="Its files belong to the data folder and must not be changed.",
            ) from error

    def write(self, number: int, blocks: Iterable[tuple[int, Image]]) -> tuple[int, int]:
        """The rows of a chunk; how many, and their bytes. It is not there before `add`."""
        count = 0
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._rows(number).open("wb") as file:
                with closing(_Writer(file)) as writer:
                    for rows, image in blocks:
                        count += rows
                        writer.write(rows, image)
                file.flush()
                os.fsync(file.fileno())
                return count, file.tell()
        except OSError as error:
            raise_translated(error, f"cannot write a chunk in {self._folder}")

    def add(self, chunk: Page) -> None:
        """Make it known, durably."""
        LocalStore(self._folder).write_atomic(f"{chunk.number:012}{_FACTS}", chunk.dump())

    def read(self, chunk: Page) -> Iterator[tuple[int, Image]]:
        """The rows, as they were written: how many, and their cells."""
        try:
            with pa.memory_map(str(self._rows(chunk.number))) as file:
                stream = pa.ipc.open_stream(file)
                for batch in stream:
                    cells = (Cells(batch.column(name)) for name in batch.schema.names[1:])
                    yield batch.num_rows, tuple(cells)
        except (OSError, pa.ArrowInvalid) as error:
            raise CorruptError(f"the rows of chunk {chunk.number} are gone: {error}") from error

    def remove(self, number: int) -> None:
        """Forget a chunk: first that it is there, then its rows."""
        (self._folder / f"{number:012}{_FACTS}").unlink(missing_ok=True)
        self._rows(number).unlink(missing_ok=True)

    def sweep(self, after: int) -> None:
        """Remove rows whose facts were never written."""
        known = set(self.numbers())
        for path in self._folder.glob(f"*{_ROWS}"):
            if int(path.stem) > after and int(path.stem) not in known:
                path.unlink()

    def _rows(self, number: int) -> Path:
        return self._folder / f"{number:012}{_ROWS}"


class _Writer:
    """Cells into an Arrow stream. Its first column is empty, and counts the rows."""

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
