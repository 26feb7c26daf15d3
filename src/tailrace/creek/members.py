"""Tables that join the publication or leave it while everything runs, and from which LSN on.

PostgreSQL sends a table's changes from the commit that added it on. Added with `_creek.add_table`,
that commit is in the log, by the message the function writes; added in another way, all that can be
said is that it was before the LSN of the look that found it. Either way the LSN is one behind which
no change of the table is missing. A transaction that was open at that moment may have written to
the table before: whether that part of it is in the stream is up to PostgreSQL.

Which tables there were is kept in the data folder, so that what joins while nobody looks is found.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
import structlog

from tailrace.creek.sql import PREFIX
from tailrace.errors import TailraceError
from tailrace.log.reader import Log
from tailrace.log.relation_history import logical_messages
from tailrace.log.store import LocalStore
from tailrace.position import ORIGIN, Lsn, Position

if TYPE_CHECKING:
    from collections.abc import Container, Iterable
    from pathlib import Path

    from tailrace.creek.catalog import PublishedSchemas
    from tailrace.schema import Relation

_PATIENCE_S = 5.0


@dataclass(frozen=True, slots=True)
class Member:
    """A table; one that is made again under its name is another."""

    oid: int
    namespace: str
    name: str

    @classmethod
    def of(cls, relation: Relation) -> Member:
        """The table that a relation describes."""
        return cls(relation.oid, relation.namespace, relation.name)

    def __str__(self) -> str:
        return f"{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True)
class _Joining:
    """One whose LSN is being looked for: `seen` is good enough, from `until` on.

    One that `was` there already has gone and come between two looks, if the log says so.
    """

    seen: Lsn
    after: Position
    until: float
    was: bool


class Members:
    """The tables of one pipeline's publication."""

    def __init__(self, folder: Path, name: str, *, publication: str, log: Path) -> None:
        self._folder = folder
        self._name = f"{name}.tables"
        self._publication = publication
        self._log = LocalStore(log)
        self._events = structlog.get_logger()
        self._written = b""
        self._members, self._looked = self._read()
        self._joining: dict[Member, _Joining] = {}
        self._begins: dict[Member, _Joining] = {}
        self._since: dict[Member, Lsn] = {}

    def end(self) -> Position:
        """Where the log ends: asked before a look, which shows all that joined before."""
        with contextlib.suppress(TailraceError, OSError):
            return Log(self._log).end().position
        return ORIGIN

    def look(self, catalog: PublishedSchemas, end: Position, added: Container[int] = ()) -> None:
        """Take notice of who is there now. Those of the first look of all have always been.

        `added` are oids of tables that somebody says were added since the last look.
        """
        now = frozenset(Member.of(table.relation) for table in catalog.tables)
        if self._members is not None:
            until = time.monotonic() + _PATIENCE_S
            for member in now:
                was = member in self._members
                if not was or (member.oid in added and member not in self._joining):
                    self._joining[member] = _Joining(catalog.lsn, self._looked, until, was)
            for member in self._members - now:
                self._joining.pop(member, None)
                self._begins.pop(member, None)
                self._events.info("creek.table_left", table=str(member))
        self._members, self._looked = now, end
        self._settle()

    def waiting(self, relation: Relation) -> bool:
        """Whether it is not clear yet where a table's changes begin."""
        return Member.of(relation) in self._joining

    @property
    def unsettled(self) -> bool:
        """Whether any is waiting."""
        return bool(self._joining)

    def begins(self, relation: Relation) -> Lsn | None:
        """Behind which LSN no change of a table is missing, until that has been announced."""
        member = Member.of(relation)
        return self._since[member] if member in self._begins else None

    @property
    def news(self) -> bool:
        """Whether it has become clear where changes of some table begin."""
        return bool(self._begins)

    def announced(self) -> None:
        """Where changes begin has been published."""
        self._begins.clear()

    def _settle(self) -> None:
        if not self._joining:
            return
        # Before the log is read: it may grow meanwhile.
        reached = self._reached()
        commits = self._commits(min(each.after for each in self._joining.values()))
        for member, joining in list(self._joining.items()):
            exact = commits.get(member.oid)
            if exact is not None and exact <= max(joining.after.lsn, self._since.get(member, 0)):
                exact = None
            if exact is None and reached < joining.seen and time.monotonic() < joining.until:
                continue
            del self._joining[member]
            if exact is None and joining.was:
                continue
            self._begins[member] = joining
            lsn = self._since[member] = exact or joining.seen
            self._events.info(
                "creek.table_joined", table=str(member), lsn=str(lsn), exact=exact is not None
            )

    def _reached(self) -> Lsn:
        with contextlib.suppress(TailraceError, OSError):
            return Log(self._log).end().end_lsn
        return Lsn(0)

    def _commits(self, after: Position) -> dict[int, Lsn]:
        """The commits that added tables, by oid, as far as the log tells."""
        found: dict[int, Lsn] = {}
        with contextlib.suppress(TailraceError, OSError):
            for entry in Log(self._log).read(after):
                for lsn, content in logical_messages(entry, PREFIX):
                    action, oid = _said(content, self._publication)
                    if action == "add":
                        found[oid] = lsn
                    else:
                        found.pop(oid, None)
        return found

    def save(self) -> None:
        """Keep who is there. One that was not announced yet is still to come."""
        if self._members is None:
            return
        coming = self._joining | self._begins
        kept = self._members - coming.keys()
        looked = min([self._looked, *(each.after for each in coming.values())])
        content = orjson.dumps(
            {
                "tables": sorted([each.oid, each.namespace, each.name] for each in kept),
                "looked": [int(looked.lsn), looked.ordinal],
            }
        )
        if content != self._written:
            LocalStore(self._folder, create=True).write_atomic(self._name, content)
            self._written = content

    def _read(self) -> tuple[frozenset[Member] | None, Position]:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            content = orjson.loads((self._folder / self._name).read_bytes())
            lsn, ordinal = content["looked"]
            return frozenset(_members(content["tables"])), Position(Lsn(lsn), int(ordinal))
        return None, ORIGIN


def _members(rows: Iterable[Any]) -> Iterable[Member]:
    for oid, namespace, name in rows:
        yield Member(int(oid), str(namespace), str(name))


def added_oid(content: bytes, publication: str) -> int | None:
    """The table that a message says was added to a publication."""
    action, oid = _said(content, publication)
    return oid if action == "add" else None


def _said(content: bytes, publication: str) -> tuple[str, int]:
    """What was done with which table; nothing if it is about another publication."""
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        said = orjson.loads(content)
        if said.get("publication") == publication:
            return str(said.get("action")), int(said.get("oid"))
    return "", 0
