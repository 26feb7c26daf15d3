"""Tables that join and leave a publication: the LSN from which each is complete."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import structlog

from tailrace.creek.catalog import PublishedSchemas
from tailrace.creek.members import Members
from tailrace.creek.table_log import added_oid
from tailrace.creek.versions import Version
from tailrace.position import Lsn, Position
from tailrace.schema import Relation, ReplicaIdentity

if TYPE_CHECKING:
    from collections.abc import Container
    from pathlib import Path


class FakeLog:
    """A log that has reached an LSN and holds the commits that added tables."""

    def __init__(self) -> None:
        self.reached = Lsn(0)
        self.commits: dict[int, Lsn] = {}
        self.asked_after: list[Position] = []

    def end_lsn(self) -> Lsn:
        return self.reached

    def added(self, after: Position) -> dict[int, Lsn]:
        self.asked_after.append(after)
        return {oid: lsn for oid, lsn in self.commits.items() if lsn > after.lsn}


def relation(oid: int) -> Relation:
    return Relation(
        oid=oid,
        namespace="public",
        name=f"t{oid}",
        replica_identity=ReplicaIdentity.DEFAULT,
        columns=(),
    )


class Publication:
    """The members of a publication, read at an LSN of the test's choice."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = FakeLog()
        self.now = 0.0
        self.restart()

    def restart(self) -> None:
        self.members = Members(
            self.folder,
            "p",
            log=self.log,  # type: ignore[arg-type]
            clock=lambda: self.now,
        )

    def read(self, lsn: int, *oids: int, end: int = 0, added: Container[int] = ()) -> None:
        tables = tuple(Version(relation=relation(oid), types={}) for oid in oids)
        catalog = PublishedSchemas(database="shop", lsn=Lsn(lsn), tables=tables)
        self.members.update(catalog, Position(Lsn(end)), added)

    def first(self, oid: int) -> int | None:
        lsn = self.members.first_lsn(relation(oid))
        return None if lsn is None else int(lsn)


def test_the_tables_of_the_first_read_are_not_announced(tmp_path: Path) -> None:
    publication = Publication(tmp_path)
    publication.read(10, 1, 2)
    assert not publication.members.joining
    assert not publication.members.unannounced
    assert publication.first(1) is None


def test_a_table_joins_at_the_commit_in_the_log(tmp_path: Path) -> None:
    publication = Publication(tmp_path)
    publication.read(10, 1, end=5)
    publication.log.commits = {2: Lsn(12)}
    with structlog.testing.capture_logs() as logs:
        publication.read(20, 1, 2, end=15)
    assert publication.first(2) == 12
    assert publication.first(1) is None
    assert publication.log.asked_after == [Position(Lsn(5))]
    [line] = logs
    assert (line["event"], line["table"], line["exact"]) == (
        "creek.table_joined",
        "public.t2",
        True,
    )
    publication.members.announced()
    assert publication.first(2) is None


def test_without_a_commit_a_table_waits_until_the_log_has_reached_the_read(tmp_path: Path) -> None:
    publication = Publication(tmp_path)
    publication.read(10, 1)
    publication.log.reached = Lsn(19)
    publication.read(20, 1, 2)
    assert publication.members.is_joining(relation(2))
    assert not publication.members.unannounced
    publication.log.reached = Lsn(20)
    publication.read(30, 1, 2)
    assert not publication.members.joining
    assert publication.first(2) == 20


def test_a_table_does_not_wait_longer_than_the_deadline(tmp_path: Path) -> None:
    publication = Publication(tmp_path)
    publication.read(10, 1)
    publication.read(20, 1, 2)
    publication.now = 4.9
    publication.read(30, 1, 2)
    assert publication.members.joining
    publication.now = 5.0
    publication.read(40, 1, 2)
    assert publication.first(2) == 20


def test_a_table_removed_and_added_again_between_two_reads(tmp_path: Path) -> None:
    publication = Publication(tmp_path)
    publication.read(10, 1, end=5)
    publication.log.commits = {1: Lsn(12)}
    publication.read(20, 1, end=15, added={1})
    assert publication.first(1) == 12
    publication.members.announced()
    # The same notification once more: the commit is known.
    publication.log.reached = Lsn(100)
    publication.read(30, 1, end=25, added={1})
    assert not publication.members.unannounced
    assert not publication.members.joining


def test_a_notification_that_arrives_after_the_read_does_not_lose_the_lsn(tmp_path: Path) -> None:
    publication = Publication(tmp_path)
    publication.read(10, 1, end=5)
    publication.log.commits = {2: Lsn(12)}
    publication.read(20, 1, 2, end=15)
    publication.read(30, 1, 2, end=15, added={2})
    assert publication.members.is_joining(relation(2))
    publication.members.announced()
    publication.log.reached = Lsn(30)
    publication.read(40, 1, 2, end=35)
    assert not publication.members.joining
    assert publication.first(2) == 12
    publication.members.announced()
    assert not publication.members.unannounced


def test_a_notification_without_a_commit_announces_nothing(tmp_path: Path) -> None:
    publication = Publication(tmp_path)
    publication.read(10, 1)
    publication.log.reached = Lsn(100)
    publication.read(20, 1, added={1})
    assert not publication.members.joining
    assert not publication.members.unannounced


def test_a_table_that_leaves_is_forgotten(tmp_path: Path) -> None:
    publication = Publication(tmp_path)
    publication.read(10, 1)
    publication.read(20, 1, 2)
    with structlog.testing.capture_logs() as logs:
        publication.read(30, 1)
    assert [(line["event"], line["table"]) for line in logs] == [("creek.table_left", "public.t2")]
    assert not publication.members.joining


def test_a_table_that_joins_while_tailrace_is_stopped_is_found(tmp_path: Path) -> None:
    publication = Publication(tmp_path)
    publication.read(10, 1, end=5)
    publication.members.save()
    publication.restart()
    publication.log.commits = {2: Lsn(12)}
    publication.read(20, 1, 2, end=15)
    assert publication.first(2) == 12


def test_a_table_that_was_not_announced_joins_again_after_a_restart(tmp_path: Path) -> None:
    publication = Publication(tmp_path)
    publication.read(10, 1, end=5)
    publication.log.commits = {2: Lsn(12)}
    publication.read(20, 1, 2, end=15)
    publication.members.save()
    publication.restart()
    publication.read(30, 1, 2, end=25)
    assert publication.first(2) == 12


def test_the_file_keeps_its_format(tmp_path: Path) -> None:
    publication = Publication(tmp_path)
    publication.read(10, 2, 1, end=5)
    publication.members.save()
    content = (tmp_path / "p.tables").read_bytes()
    assert content == b'{"tables":[[1,"public","t1"],[2,"public","t2"]],"looked":[5,0]}'


def test_an_invalid_file_is_ignored(tmp_path: Path) -> None:
    for content in (b"", b"{", b"null", b'{"tables": [[1]], "looked": [1, 2]}'):
        (tmp_path / "p.tables").write_bytes(content)
        publication = Publication(tmp_path)
        publication.read(10, 1, 2)
        assert not publication.members.joining


def test_nothing_is_saved_before_the_first_read(tmp_path: Path) -> None:
    Publication(tmp_path).members.save()
    assert not (tmp_path / "p.tables").exists()


def test_messages_of_add_table() -> None:
    message = {"action": "add", "publication": "creek", "oid": 7}
    assert added_oid(json.dumps(message).encode(), "creek") == 7
    assert added_oid(json.dumps(message).encode(), "other") is None
    assert added_oid(json.dumps(message | {"action": "remove"}).encode(), "creek") is None
    for content in (b"", b"7", b"[]", b'{"publication": "creek", "action": "add", "oid": null}'):
        assert added_oid(content, "creek") is None
