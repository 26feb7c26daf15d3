"""Verification: walk a whole log and say everything that is wrong with it.

Checks each checksum, the order of positions, epochs, LSNs and times within and across segments,
the grammar of the messages, the index and the durable mark. Changes nothing, and may run while a
capture appends: what stands behind the mark is not judged.
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


_TELL_BYTES = 1 << 22


class Severity(enum.Enum):
    """How bad a finding is."""

    ERROR = "error"
    WARNING = "warning"
    """Costs time or will be put right by the next start; nothing is lost."""
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """One thing that is not as it should be."""

    severity: Severity
    file: str
    offset: int | None = None
    problem: str


@dataclass(slots=True, kw_only=True)
class SegmentReport:
    """What one segment holds, up to the durable mark or its first damage."""

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
    """Findings that are no single segment's."""

    @property
    def findings(self) -> list[Defect]:
        """All of them."""
        return [*self.general, *(one for part in self.segments for one in part.findings)]

    @property
    def ok(self) -> bool:
        """Whether every byte that counts can be trusted."""
        return all(finding.severity is not Severity.ERROR for finding in self.findings)


def verify(store: Store, *, progress: Callable[[int, int], None] | None = None) -> Report:
    """Check everything. `progress` is called with bytes done and bytes in all, now and then."""
    report = Report()
    report.end = _mark(store, report)
    try:
        names = list_segments(store)
    except CorruptError as error:
        report.general.append(Defect(severity=Severity.ERROR, file="", problem=str(error)))
        return report
    _check_mark_place(report, names)
    last = report.end.sequence if report.end else names[-1].sequence if names else 0
    pace = _Pace(sum(store.size(name.file) for name in names), progress)
    chain = _Chain()
    for name in names:
        part = SegmentReport(name=name)
        report.segments.append(part)
        if name.sequence <= last:
            _Segment(store, part, chain, report.end, pace).check()
        else:
            _note_unsettled(store, part, 0)
        pace.done_file(store.size(name.file))
    _check_end(report, chain)
    return report


def _mark(store: Store, report: Report) -> Mark | None:
    problem = "there is no durable mark: the next start of capture writes it"
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
        problem = f"the mark stands in segment {end.sequence}, which is not there"
        finding = Defect(severity=Severity.ERROR, file=marks.NAME, problem=problem)
        report.general.append(finding)


def _check_end(report: Report, chain: _Chain) -> None:
    """The mark against the entry it stands behind."""
    end = report.end
    if end is None or not chain.unbroken or not report.ok:
        return
    found = (chain.position, chain.end_lsn, chain.time)
    problem = ""
    if found != (end.position, end.end_lsn, end.time):
        problem = f"the mark says {end.position} and {end.end_lsn}, the log ends at {found[0]}"
    elif chain.inside:
        problem = "the mark stands inside a transaction"
    if problem:
        report.general.append(Defect(severity=Severity.ERROR, file=marks.NAME, problem=problem))


def _note_unsettled(store: Store, part: SegmentReport, start: int) -> None:
    part.bytes = store.size(part.name.file)
    if part.bytes > start:
        problem = f"{part.bytes - start} bytes behind the durable mark, not visible to readers yet"
        note = Defect(severity=Severity.NOTE, file=part.name.file, offset=start, problem=problem)
        part.findings.append(note)


@dataclass(slots=True)
class _Pace:
    """Calls `progress` once in a few megabytes."""

    total: int
    call: Callable[[int, int], None] | None
    files: int = 0
    told: int = 0

    def at(self, offset: int) -> None:
        done = self.files + offset
        if self.call is not None and done - self.told >= _TELL_BYTES:
            self.told = done
            self.call(done, self.total)

    def done_file(self, size: int) -> None:
        self.files += size
        self.at(0)


@dataclass(slots=True)
class _Chain:
    """What one segment hands on to the next."""

    position: Position = ORIGIN
    end_lsn: Lsn = field(default_factory=lambda: Lsn(0))
    time: int = 0
    epoch: int = 0
    system_identifier: str = ""
    inside: bool = False
    """Whether a transaction has not ended yet."""
    open: tuple[int, int] | None = None
    """Its xid and commit LSN, where they are known."""
    schemas: SchemaBook = field(default_factory=SchemaBook)
    grammar: Grammar = field(default_factory=Grammar)
    begun: bool = False
    unbroken: bool = True
    """Whether everything before has been read, so that the next segment must continue it."""


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
        """Everything, up to the first damage."""
        try:
            size = self._store.size(self._name.file)
            header, self._at = read_header(self._store, self._name)
            self._check_header(header)
            for placed in walk(self._store, self._name, self._at, self._limit):
                self._check_entry(placed, header)
                self._at = placed.end
                self._pace.at(placed.end)
        except MalformedError as error:
            self._say(str(error))
            self._chain.unbroken = False
            self._chain.open = None
            return
        if not self._part.entries:
            self._say("the segment has no first entry")
        self._check_index()
        _note_unsettled(self._store, self._part, self._at)
        self._part.bytes = size

    def _say(self, problem: str, severity: Severity = Severity.ERROR, file: str = "") -> None:
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
            self._say("the segment is of another database than the one before it")
        if chain.begun and chain.unbroken:
            here = (header.base, header.base_end_lsn, header.base_time)
            if here != (chain.position, chain.end_lsn, chain.time):
                self._say(
                    f"the segment begins after {header.base}, "
                    f"the one before it ends at {chain.position}"
                )
        if header.epoch < chain.epoch:
            self._say(f"epoch {header.epoch} follows epoch {chain.epoch}")
        chain.position, chain.end_lsn = header.base, header.base_end_lsn
        chain.time, chain.epoch = header.base_time, header.epoch
        chain.system_identifier = header.identity.system_identifier

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
            self._say("a SCHEMA entry in the middle of a segment")
        else:
            self._check_order(entry)
        for problem in chain.grammar.problems(entry):
            self._say(problem)
        for message in entry.schema_messages():
            chain.schemas.note(message)
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
            self._say("the segment does not open with a SCHEMA entry")
        if (entry.last, entry.end_lsn, entry.epoch) != (
            header.base,
            header.base_end_lsn,
            header.epoch,
        ):
            self._say("the SCHEMA entry and the segment's header do not agree")
        restated = [bytes(message) for message in entry.schema_messages()]
        if chain.begun and chain.unbroken:
            if restated != chain.schemas.messages():
                self._say("the SCHEMA entry does not restate the schemas in force")
            if entry.ends == chain.inside:
                self._say("the SCHEMA entry is wrong about an open transaction")
        chain.begun = chain.unbroken = True
        chain.schemas = SchemaBook()
        chain.grammar = Grammar()

    def _check_order(self, entry: Entry) -> None:
        chain = self._chain
        if entry.epoch < chain.epoch:
            self._say(f"epoch {entry.epoch} follows epoch {chain.epoch}")
        if entry.end_lsn < chain.end_lsn:
            self._say(f"end_lsn goes back from {chain.end_lsn} to {entry.end_lsn}")
        ahead = entry.first > chain.position if entry.changes else entry.last >= chain.position
        if not ahead or (entry.changes and entry.last < entry.first):
            self._say(f"positions {entry.first} to {entry.last} follow {chain.position}")
        continues = entry.kind is Kind.FRAGMENT and not entry.begins
        if continues != chain.inside:
            self._say(
                "a fragment continues a transaction that is not open"
                if continues
                else "an entry begins while a transaction is open"
            )
        elif continues and chain.open not in (None, (entry.xid, int(entry.first.lsn))):
            self._say("a fragment continues another transaction than the open one")

    def _check_index(self) -> None:
        """A row too few costs time, unless it hides a change of schema from whoever jumps."""
        size = self._index_size()
        rows = index.read(self._store, self._name.index)
        file = self._name.index
        if size % index.ROW_BYTES or size // index.ROW_BYTES > len(rows):
            self._say("the index has damaged rows", Severity.WARNING, file)
        if any(self._rows.get(row.offset, row) != row for row in rows):
            self._say("the index has rows that do not fit their entries", Severity.WARNING, file)
        furthest = max((row.offset for row in rows), default=0)
        listed = {row.offset for row in rows}
        hidden = [
            offset
            for offset, row in sorted(self._rows.items())[1:]
            if row.schemas and offset < furthest and offset not in listed
        ]
        if hidden:
            self._say(f"the index hides a change of schema at byte {hidden[0]}", file=file)

    def _index_size(self) -> int:
        try:
            return self._store.size(self._name.index)
        except FileNotFoundError:
            return 0
