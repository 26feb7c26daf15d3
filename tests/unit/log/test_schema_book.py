"""The schemas in force: newest message of each object, types first."""

from __future__ import annotations

from tailrace.log.format.entry import Kind
from tailrace.log.schema_book import SchemaBook, read_relations
from tailrace.position import Lsn, Position
from tailrace.schema import TypeName
from tailrace.wire import pgoutput
from tests.fix_log import MOOD, relation

AT = Position(Lsn(5), 2)
OLD, NEW, OTHER = (pgoutput.write(each) for each in (relation(1), relation(1, 1), relation(2)))
TYPE = pgoutput.write(MOOD)


def book(*messages: bytes) -> SchemaBook:
    result = SchemaBook()
    for message in messages:
        result.note(message)
    return result


def test_a_newer_message_replaces_the_older_one_of_its_object() -> None:
    assert book(OLD, OTHER, NEW).messages() == [NEW, OTHER]


def test_types_precede_relations() -> None:
    assert book(OLD, TYPE).messages() == [TYPE, OLD]


def test_a_type_and_a_relation_of_one_oid_are_different_objects() -> None:
    same = pgoutput.write(TypeName(oid=1, namespace="public", name="t"))
    assert book(OLD, same).messages() == [same, OLD]


def test_a_copy_is_independent() -> None:
    first = book(OLD)
    second = first.copy()
    second.note(NEW)
    assert (first.messages(), second.messages()) == ([OLD], [NEW])


def test_an_entry_states_all_of_them() -> None:
    entry = book(OLD, TYPE).entry(AT, end_lsn=Lsn(9), time=7, epoch=3, ends=False)
    assert (entry.kind, entry.first, entry.last, entry.schemas) == (Kind.SCHEMA, AT, AT, 2)
    assert (entry.end_lsn, entry.last_time, entry.epoch, entry.ends) == (9, 7, 3, False)
    other = SchemaBook()
    other.note_entry(entry)
    assert other.messages() == [TYPE, OLD]


def test_an_empty_book_is_an_entry_without_messages() -> None:
    entry = SchemaBook().entry(AT, end_lsn=Lsn(9), time=7)
    assert (list(entry.messages()), entry.schemas) == ([], 0)


def test_relations_come_with_the_types_they_use() -> None:
    types: dict[int, TypeName] = {25: TypeName(oid=25, namespace="x", name="y")}
    assert list(read_relations([TYPE, OLD], types)) == [(relation(1), {25: types[25]})]
    assert types[MOOD.oid] == MOOD
