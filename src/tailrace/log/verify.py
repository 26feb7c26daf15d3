"""Verification: reads a whole log and reports every defect.

Checks every checksum, the order of positions, epochs, LSNs and times within and across segments,
the grammar of the messages, the index and the durable mark. Changes nothing, and may run while
capture appends: bytes after the mark are not checked.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tailrace.errors import CorruptError, MalformedError
from tailrace.log.format import index
from tailrace.log.format import mark as marks
from tailrace.log.format.entry import Entry, Kind
from tailrace.log.format.grammar import Grammar
from tailrace.log.format.segment import SegmentName, list_segments, read_header, walk
from tailrace.log.schema_book import SchemaBook
from tailrace.position import ORIGIN, Lsn, Position

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.log.format.layout import SegmentHeader
    from tailrace.log.format.mark import Mark
    from tailrace.log.format.segment import Placed
    from tailrace.log.store import Store


_PROGRESS_BYTES = 1 << 22


class Severity(enum.Enum):
    """How bad a defect is."""

    ERROR = "error"
    WARNING = "warning"
    """Costs time, or the next start of capture repairs it; no change is lost."""
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """One thing that does not follow the format."""

    severity: Severity
    file: str
    offset: int | None = None
    problem: str


@dataclass(slots=True, kw_only=True)
class SegmentReport:
    """The contents of one segment, up to the durable mark or its first damage."""

    name: SegmentName
    bytes: int = 0
    entries: int = 0
    transactions: int = 0
    changes: int = 0
    findings: list[Defect] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Report:
    """The whole log."""

    segments: list[SegmentReport] = field(default_factory=list)
    end: Mark | None = None
    general: list[Defect] = field(default_factory=list)
    """Defects of the log as a whole."""

    @property
    def findings(self) -> list[Defect]:
        """All defects."""
        return [*self.general, *(defect for part in self.segments for defect in part.findings)]

    @property
    def ok(self) -> bool:
        """Whether every visible byte can be trusted."""
        return all(finding.severity is not Severity.ERROR for finding in self.findings)


def verify(store: Store, *, progress: Callable[[int, int], None] | None = None) -> Report:
    """Check everything. Calls `progress` every few MB with the bytes done and the total.

    Capture may run: segments that retention removes meanwhile are left out.
    """
    report = Report()
    report.end = _mark(store, report)
    try:
        names = list_segments(store)
    except CorruptError as error:
        report.general.append(Defect(severity=Severity.ERROR, file="", problem=str(error)))
        return report
    _check_mark_place(report, names)
    last = report.end.sequence if report.end else names[-1].sequence if names else 0
    sizes = {name: _size(store, name) for name in names}
    pace = _Pace(sum(sizes.values()), progress)
    chain = _Chain()
    for name in names:
        part = SegmentReport(name=name)
        try:
            if name.sequence <= last:
                _Segment(store, part, chain, report.end, pace).check()
            else:
                _note_invisible(store, part, 0)
        except FileNotFoundError:
            if name in list_segments(store):
                raise
            # The log begins after it now.
            report.segments.clear()
            chain = _Chain()
        else:
            report.segments.append(part)
        pace.done_file(sizes[name])
    _check_end(report, chain)
    return report


def _size(store: Store, name: SegmentName) -> int:
    try:
        return store.size(name.file)
    except FileNotFoundError:
        return 0


def _mark(store: Store, report: Report) -> Mark | None:
    problem = "the durable mark is missing: the next start of capture writes it"
    try:
        mark = marks.read(store)
    except CorruptError as error:
        mark, problem = None, str(error)
    if mark is None and store.names():
        finding = Defect(severity=Severity.ERROR, file=marks.NAME, problem=problem)
        report.general.append(finding)
    return mark


def _check_mark_place(report: Report, names: list[SegmentName]) -> None:
    end = report.end
    if end is not None and end.sequence not in {name.sequence for name in names}:
        problem = f"the mark is in segment {end.sequence}, which is missing"
        finding = Defect(severity=Severity.ERROR, file=marks.NAME, problem=problem)
        report.general.append(finding)


def _check_end(report: Report, chain: _Chain) -> None:
    """Compare the mark with the entry that it follows."""
    end = report.end
    if end is None or not chain.unbroken or not report.ok:
        return
    problem = ""
    if (chain.position, chain.end_lsn, chain.time) != (end.position, end.end_lsn, end.time):
        problem = (
            f"the mark is at {end.position} and {end.end_lsn}, but the log ends at {chain.position}"
        )
    elif chain.inside:
        problem = "the mark is inside a transaction"
    if problem:
        report.general.append(Defect(severity=Severity.ERROR, file=marks.NAME, problem=problem))


def _note_invisible(store: Store, part: SegmentReport, start: int) -> None:
    part.bytes = store.size(part.name.file)
    if part.bytes > start:
        problem = f"{part.bytes - start} bytes after the durable mark, not visible to readers yet"
        note = Defect(severity=Severity.NOTE, file=part.name.file, offset=start, problem=problem)
        part.findings.append(note)


@dataclass(slots=True)
class _Pace:
    """Calls `progress` every few megabytes."""

    total: int
    call: Callable[[int, int], None] | None
    files: int = 0
    reported: int = 0

    def at(self, offset: int) -> None:
        done = self.files + offset
        if self.call is not None and done - self.reported >= _PROGRESS_BYTES:
            self.reported = done
            self.call(done, self.total)

    def done_file(self, size: int) -> None:
        self.files += size
        self.at(0)


@dataclass(slots=True)
class _Chain:
    """The state that one segment passes to the next."""

    position: Position = ORIGIN
    end_lsn: Lsn = field(default_factory=lambda: Lsn(0))
    time: int = 0
    epoch: int = 0
    system_identifier: str = ""
    timeline: int = 0
    log_id: str = ""
    inside: bool = False
    """Whether a transaction has not ended yet."""
    open: tuple[int, int] | None = None
    """Its xid and commit LSN, if known."""
    schemas: SchemaBook = field(default_factory=SchemaBook)
    grammar: Grammar = field(default_factory=Grammar)
    begun: bool = False
    unbroken: bool = True
    """Whether everything before was readable, so that the next segment must continue it."""


class _Segment:
    """The check of one segment."""

    def __init__(
        self, store: Store, part: SegmentReport, chain: _Chain, end: Mark | None, pace: _Pace
    ) -> None:
        self._store = store
        self._part = part
        self._chain = chain
        self._pace = pace
        self._name = part.name
        self._limit = end.offset if end and end.sequence == part.name.sequence else None
        self._at = 0
        self._rows: dict[int, index.Row] = {}

    def check(self) -> None:
        """Check everything up to the first damage."""
        try:
            size = self._store.size(self._name.file)
            header, self._at = read_header(self._store, self._name)
            self._check_header(header)
            for placed in walk(self._store, self._name, self._at, self._limit):
                self._check_entry(placed, header)
                self._at = placed.end
                self._pace.at(placed.end)
        except MalformedError as error:
            self._report(str(error))
            self._chain.unbroken = False
            self._chain.open = None
            return
        if not self._part.entries:
            self._report("the segment has no first entry")
        self._check_index()
        _note_invisible(self._store, self._part, self._at)
        self._part.bytes = size

    def _report(self, problem: str, severity: Severity = Severity.ERROR, file: str = "") -> None:
        self._part.findings.append(
            Defect(
                severity=severity,
                file=file or self._name.file,
                offset=self._at,
                problem=problem,
            )
        )

    def _check_header(self, header: SegmentHeader) -> None:
        chain = self._chain
        if chain.begun and header.identity.system_identifier != chain.system_identifier:
            self._report("the segment belongs to another server than the one before it")
        if chain.begun and header.log_id != chain.log_id:
            self._report("the segment belongs to another log than the one before it")
        if chain.begun and chain.unbroken:
            if header.identity.timeline > chain.timeline:
                # A new timeline may begin before the end of the old one.
                chain.end_lsn = min(chain.end_lsn, header.base_end_lsn)
            here = (header.base, header.base_end_lsn, header.base_time)
            if here != (chain.position, chain.end_lsn, chain.time):
                self._report(
                    f"the segment begins after {header.base}, "
                    f"but the one before it ends at {chain.position}"
                )
        if header.epoch < chain.epoch:
            self._report(f"epoch {header.epoch} follows epoch {chain.epoch}")
        chain.position, chain.end_lsn = header.base, header.base_end_lsn
        chain.time, chain.epoch = header.base_time, header.epoch
        chain.system_identifier = header.identity.system_identifier
        chain.log_id, chain.timeline = header.log_id, header.identity.timeline

    def _check_entry(self, placed: Placed, header: SegmentHeader) -> None:
        entry, chain, part = placed.entry, self._chain, self._part
        self._rows[placed.start] = index.Row(
            offset=placed.start,
            first=entry.first,
            time_before=chain.time,
            schemas=bool(entry.schemas),
        )
        if part.entries == 0:
            self._check_opening(entry, header)
        elif entry.kind is Kind.SCHEMA:
            self._report("a SCHEMA entry in the middle of a segment")
        else:
            self._check_order(entry)
        for problem in chain.grammar.problems(entry):
            self._report(problem)
        chain.schemas.note_entry(entry)
        chain.position = max(chain.position, entry.last)
        chain.time = max(chain.time, entry.last_time)
        chain.epoch = max(chain.epoch, entry.epoch)
        if entry.ends:
            chain.end_lsn = max(chain.end_lsn, entry.end_lsn)
        chain.inside = not entry.ends
        if entry.kind is not Kind.SCHEMA:
            chain.open = None if entry.ends else (entry.xid, int(entry.first.lsn))
        part.entries += 1
        part.transactions += entry.transactions
        part.changes += entry.changes

    def _check_opening(self, entry: Entry, header: SegmentHeader) -> None:
        chain = self._chain
        if entry.kind is not Kind.SCHEMA:
            self._report("the segment does not open with a SCHEMA entry")
        if (entry.last, entry.end_lsn, entry.epoch) != (
            header.base,
            header.base_end_lsn,
            header.epoch,
        ):
            self._report("the SCHEMA entry differs from the segment's header")
        messages = [bytes(message) for message in entry.schema_messages()]
        if chain.begun and chain.unbroken:
            # Dropped tables are left out. The grammar notices a change whose relation is missing.
            if not set(messages) <= set(chain.schemas.messages()):
                self._report("the SCHEMA entry does not repeat the schemas in force")
            if entry.ends == chain.inside:
                self._report("the SCHEMA entry is wrong about an open transaction")
        chain.begun = chain.unbroken = True
        chain.schemas = SchemaBook()
        chain.grammar = Grammar()

    def _check_order(self, entry: Entry) -> None:
        chain = self._chain
        if entry.epoch < chain.epoch:
            self._report(f"epoch {entry.epoch} follows epoch {chain.epoch}")
        if entry.end_lsn < chain.end_lsn:
            self._report(f"end_lsn goes back from {chain.end_lsn} to {entry.end_lsn}")
        ahead = entry.first > chain.position if entry.changes else entry.last >= chain.position
        if not ahead or (entry.changes and entry.last < entry.first):
            self._report(f"positions {entry.first} to {entry.last} follow {chain.position}")
        continues = entry.kind is Kind.FRAGMENT and not entry.begins
        if continues != chain.inside:
            self._report(
                "a fragment continues a transaction that is not open"
                if continues
                else "an entry begins while a transaction is open"
            )
        elif continues and chain.open not in (None, (entry.xid, int(entry.first.lsn))):
            self._report("a fragment continues another transaction than the open one")

    def _check_index(self) -> None:
        """Check the index. A missing row costs time, or makes a reader skip a schema change."""
        size = self._index_size()
        rows = index.read(self._store, self._name.index)
        file = self._name.index
        if size % index.ROW_BYTES or size // index.ROW_BYTES > len(rows):
            self._report("the index has damaged rows", Severity.WARNING, file)
        if any(self._rows.get(row.offset, row) != row for row in rows):
            self._report("index rows differ from their entries", Severity.WARNING, file)
        furthest = max((row.offset for row in rows), default=0)
        listed = {row.offset for row in rows}
        hidden = [
            offset
            for offset, row in sorted(self._rows.items())[1:]
            if row.schemas and offset < furthest and offset not in listed
        ]
        if hidden:
            self._report(
                f"the index lacks a row for the schema change at byte {hidden[0]}", file=file
            )

    def _index_size(self) -> int:
        try:
            return self._store.size(self._name.index)
        except FileNotFoundError:
            return 0
