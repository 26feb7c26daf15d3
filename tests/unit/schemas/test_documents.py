"""Which document applies where, whatever the order in which documents were written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from tailrace.position import ORIGIN, Lsn, Position
from tailrace.postgres.names import TableName
from tailrace.schemas.documents import Claim, Document, additions, document_at, position_of

if TYPE_CHECKING:
    from collections.abc import Sequence

TABLE = TableName("public", "users")


def claim(
    at: int, *names: str, ordinal: int = 0, oid: int = 1, default: str | None = None
) -> Claim:
    columns = tuple(
        {"name": name, "data_type": "text", "column_default": default} for name in names
    )
    return Claim(
        document=Document(table=TABLE, relation_id=oid, columns=columns, key=()),
        position=Position(Lsn(at), ordinal),
    )


def stated(at: int, *names: str, ordinal: int = 0, oid: int = 1) -> Claim:
    whole = claim(at, *names, ordinal=ordinal, oid=oid)
    return Claim(document=whole.document, position=whole.position, names_and_types_only=True)


def written(*passes: Sequence[Claim]) -> list[dict[str, Any]]:
    stored: list[dict[str, Any]] = []
    for number, claims in enumerate(passes):
        stored += additions(stored, claims, timestamp=number)
    return stored


def names_at(stored: list[dict[str, Any]], at: int, ordinal: int = 0) -> list[str]:
    found = document_at(stored, Position(Lsn(at), ordinal))
    assert found is not None
    return [column["name"] for column in found["columns"]]


def test_a_document_is_written_once() -> None:
    assert [d["version"] for d in written([claim(5, "id")], [claim(9, "id")])] == [1]


def test_each_change_of_a_table_is_a_version_from_its_first_change_on() -> None:
    stored = written([claim(5, "id")], [stated(10, "id", "name"), stated(20, "id")])
    assert [(d["version"], d["lsn"]) for d in stored] == [(1, "0/5"), (2, "0/A"), (3, "0/14")]
    assert names_at(stored, 9) == ["id"]
    assert names_at(stored, 10) == names_at(stored, 19) == ["id", "name"]
    assert names_at(stored, 20) == ["id"]


def test_versions_inside_a_transaction_differ_by_their_ordinal() -> None:
    stored = written([stated(5, "a"), stated(5, "a", "b", ordinal=2), stated(5, "b", ordinal=3)])
    assert [names_at(stored, 5, ordinal) for ordinal in range(4)] == [
        ["a"],
        ["a"],
        ["a", "b"],
        ["b"],
    ]


def test_a_default_is_a_version_and_a_relation_message_does_not_contradict_it() -> None:
    stored = written([claim(5, "id")], [claim(8, "id", default="1")], [stated(9, "id")])
    assert [d["columns"][0]["column_default"] for d in stored] == [None, "1"]


def test_a_recreated_table_is_another_version() -> None:
    stored = written([claim(5, "id")], [claim(8, "id", oid=2)])
    assert [d["relation_id"] for d in stored] == [1, 2]


def test_the_catalog_may_be_ahead_of_the_log() -> None:
    """The catalog shows two changes at 30; the log then has the first position of each."""
    stored = written(
        [claim(5, "a")],
        [claim(30, "a", "b", "c")],
        [stated(10, "a", "b"), stated(20, "a", "b", "c")],
    )
    assert names_at(stored, 9) == ["a"]
    assert names_at(stored, 10) == ["a", "b"]
    assert names_at(stored, 20) == names_at(stored, 40) == ["a", "b", "c"]
    assert [column["name"] for column in stored[-1]["columns"]] == ["a", "b", "c"]


def test_a_column_dropped_and_added_again_before_the_catalog_was_read() -> None:
    stored = written([claim(35, "b")], [stated(10, "b"), stated(20, "a"), stated(30, "b")])
    assert [names_at(stored, at) for at in (10, 20, 30, 40)] == [["b"], ["a"], ["b"], ["b"]]


def test_a_document_of_an_older_release_applies_from_the_origin() -> None:
    old = {"table": "users", "schema": "public.users", "timestamp": 1, "columns": []}
    assert position_of(old) == ORIGIN
    [new] = additions([old], [claim(7, "id")], timestamp=2)
    assert (new["version"], new["lsn"]) == (1, "0/7")
    assert document_at([old, new], Position(Lsn(6))) is old


def test_documents_of_another_log_are_of_another_history() -> None:
    """GIVEN a database that was restored into a cluster with smaller LSNs and other OIDs WHEN its
    table is claimed THEN the last document is the table's, and stays so."""
    stored = additions([], [claim(100, "id", oid=1)], timestamp=1, log_id="a")
    new = [claim(5, "id", oid=2)]
    stored += additions(stored, new, timestamp=2, log_id="b")
    assert [(d["version"], d["relation_id"], d["log_id"]) for d in stored] == [
        (1, 1, "a"),
        (2, 2, "b"),
    ]
    assert additions(stored, [*new, claim(9, "id", oid=2)], timestamp=3, log_id="b") == []


def test_a_document_from_before_the_log_belongs_to_it() -> None:
    stored = additions([], [claim(5, "id")], timestamp=1)
    assert "log_id" not in stored[0]
    assert additions(stored, [claim(7, "id")], timestamp=2, log_id="a") == []


def test_no_document_is_stored() -> None:
    assert document_at([], ORIGIN) is None
    assert additions([], [], timestamp=1) == []


@given(
    history=st.lists(st.sampled_from("abcd"), min_size=1, max_size=12),
    passes=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=8),
)
def test_every_change_finds_its_document(history: list[str], passes: list[tuple[int, int]]) -> None:
    """GIVEN a table whose one column changes at 10, 20, 30 ...
    WHEN log and catalog are read again and again, each as far as it happens to be
    THEN in the end every change finds the columns it has, and the last document is the table."""
    stored: list[dict[str, Any]] = []
    ends = [*passes, (len(history), len(history))]
    reached = 0
    for log, catalog in ends:
        reached = max(reached, min(log, len(history)))
        now = max(min(catalog, len(history)), reached, 1)
        claims = [stated(10 * (at + 1), name) for at, name in enumerate(history[:reached])]
        # The catalog was read some time after its last change, and before the next.
        claims.append(claim(10 * now + 5, history[now - 1]))
        stored += additions(stored, claims, timestamp=0)
        assert stored[-1]["columns"][0]["name"] in history
    for at, name in enumerate(history):
        for change in range(10 * (at + 1), 10 * (at + 2)):
            assert names_at(stored, change) == [name]
    assert stored[-1]["columns"][0]["name"] == history[-1]
    assert [d["version"] for d in stored] == list(range(1, len(stored) + 1))
