"""Tables that join or leave the publication while capture runs, and the LSN of their first change.

PostgreSQL sends the changes of a table from the commit that added it. If `_creek.add_table` added
it, the log holds that commit, by the message the function writes. Otherwise the LSN of the catalog
read that found the table is an upper bound. In both cases no change after the LSN is missing. A
transaction that was open at that time may have written to the table before; PostgreSQL decides
whether the stream has that part.

The known tables are stored in the data folder, so that tables added while Tailrace was stopped are
found.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from tailrace.position import ORIGIN, Lsn, Position
from tailrace.state_file import StateFile

if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from pathlib import Path

    from tailrace.creek.catalog import PublishedSchemas
    from tailrace.creek.table_log import TableLog
    from tailrace.schema import Relation

_MAX_LOG_LAG_S = 5.0


@dataclass(frozen=True, slots=True)
class Member:
    """A published table. One that is dropped and created again has another oid: another member."""

    oid: int
    namespace: str
    name: str

    @classmethod
    def of(cls, relation: Relation) -> Member:
        """The table of a relation."""
        return cls(relation.oid, relation.namespace, relation.name)

    def __str__(self) -> str:
        return f"{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Joining:
    """A table whose first LSN is not known yet.

    `read_lsn` is the LSN of the catalog read that found it, `after` the end of the log at the read
    before. `present`: the table was published at the read before, too; a notification says that it
    was removed and added again in between.
    """

    read_lsn: Lsn
    after: Position
    deadline: float
    present: bool


@dataclass(frozen=True, slots=True)
class _State:
    """The file in the data folder: tables as oid, schema, name; the end of the log as LSN,
    ordinal."""

    tables: list[tuple[int, str, str]]
    looked: tuple[int, int]


class Members:
    """The tables of one pipeline's publication."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        log: TableLog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = StateFile(folder / f"{name}.tables", _State)
        self._log = log
        self._clock = clock
        self._events = structlog.get_logger()
        self._members, self._log_end = self._load()
        self._joining: dict[Member, _Joining] = {}
        self._unannounced: dict[Member, _Joining] = {}
        """Tables whose first LSN is known and not published yet."""
        self._first_lsn: dict[Member, Lsn] = {}

    def update(
        self, catalog: PublishedSchemas, log_end: Position, added: Container[int] = ()
    ) -> None:
        """Compare with a catalog read. Tables of the first read of all count as old.

        `log_end` is the end of the log before the read. `added` are the oids of tables that
        notifications say were added since the last read.
        """
        now = frozenset(Member.of(table.relation) for table in catalog.tables)
        if self._members is not None:
            deadline = self._clock() + _MAX_LOG_LAG_S
            for member in now:
                present = member in self._members
                if not present or (member.oid in added and member not in self._joining):
                    self._joining[member] = _Joining(
                        read_lsn=catalog.lsn,
                        after=self._log_end,
                        deadline=deadline,
                        present=present,
                    )
            for member in self._members - now:
                self._joining.pop(member, None)
                self._unannounced.pop(member, None)
                self._events.info("creek.table_left", table=str(member))
        self._members, self._log_end = now, log_end
        self._resolve()

    def is_joining(self, relation: Relation) -> bool:
        """Whether the first LSN of a table is not known yet."""
        return Member.of(relation) in self._joining

    @property
    def joining(self) -> bool:
        """Whether the first LSN of any table is not known yet."""
        return bool(self._joining)

    def first_lsn(self, relation: Relation) -> Lsn | None:
        """The LSN from which a table is complete, until it has been announced."""
        member = Member.of(relation)
        return self._first_lsn[member] if member in self._unannounced else None

    @property
    def unannounced(self) -> bool:
        """Whether a first LSN is known and not published yet."""
        return bool(self._unannounced)

    def announced(self) -> None:
        """Note that every known first LSN has been published, but for tables that are joining.

        A notification may arrive after the read that found its table: the table then joins once
        more, is left out of this publication, and its LSN is still to be published.
        """
        self._unannounced = {
            member: joining
            for member, joining in self._unannounced.items()
            if member in self._joining
        }

    def _resolve(self) -> None:
        """Find the first LSN of the joining tables.

        | commit in the log | log has reached the read, or deadline | present | result             |
        |-------------------|---------------------------------------|---------|--------------------|
        | yes               | any                                   | any     | the commit's LSN   |
        | no                | no                                    | any     | wait               |
        | no                | yes                                   | no      | the read's LSN     |
        | no                | yes                                   | yes     | nothing to announce|
        """
        if not self._joining:
            return
        # Both before the messages: the log may grow in between.
        now, reached = self._clock(), self._log.end_lsn()
        commits = self._log.added(min(joining.after for joining in self._joining.values()))
        for member, joining in list(self._joining.items()):
            commit = self._new_commit(member, joining, commits)
            if commit is None and reached < joining.read_lsn and now < joining.deadline:
                continue
            del self._joining[member]
            if commit is not None or not joining.present:
                self._join(member, joining, commit)

    def _new_commit(self, member: Member, joining: _Joining, commits: dict[int, Lsn]) -> Lsn | None:
        """The commit that added a table, unless an earlier read already knew it."""
        commit = commits.get(member.oid)
        known = max(joining.after.lsn, self._first_lsn.get(member, 0))
        return commit if commit is not None and commit > known else None

    def _join(self, member: Member, joining: _Joining, commit: Lsn | None) -> None:
        lsn = commit or joining.read_lsn
        self._unannounced[member] = joining
        self._first_lsn[member] = lsn
        self._events.info(
            "creek.table_joined", table=str(member), lsn=str(lsn), exact=commit is not None
        )

    def save(self) -> None:
        """Store the tables, without those that are not announced yet: they join again after a
        restart."""
        if self._members is None:
            return
        pending = self._joining | self._unannounced
        members = self._members - pending.keys()
        log_end = min([self._log_end, *(joining.after for joining in pending.values())])
        self._file.write(
            _State(
                sorted((member.oid, member.namespace, member.name) for member in members),
                (int(log_end.lsn), log_end.ordinal),
            )
        )

    def _load(self) -> tuple[frozenset[Member] | None, Position]:
        state = self._file.read_or(None)
        if state is None:
            return None, ORIGIN
        lsn, ordinal = state.looked
        return frozenset(Member(*table) for table in state.tables), Position(Lsn(lsn), ordinal)
