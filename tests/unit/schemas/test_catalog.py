"""Claims of log and catalog, and Relation messages completed from the catalog."""

from __future__ import annotations

from typing import Any

from tailrace.log.relation_history import RelationVersion
from tailrace.position import Lsn, Position
from tailrace.postgres.names import TableName
from tailrace.schema import Column, Relation, ReplicaIdentity
from tailrace.schemas.catalog import ColumnCatalog
from tailrace.schemas.documents import Document

INT4, TEXT, OWN = 23, 25, 16500


def column(name: str, data_type: str = "integer", **more: Any) -> dict[str, Any]:
    fields = {"name": name, "position": 1, "data_type": data_type, "is_nullable": False}
    return fields | {"column_default": "7"} | more


def document(oid: int = 1, *columns: dict[str, Any], key: tuple[str, ...] = ("id",)) -> Document:
    table = TableName("public", "users")
    return Document(table=table, relation_id=oid, columns=columns or (column("id"),), key=key)


def catalog(*documents: Document) -> ColumnCatalog:
    return ColumnCatalog(
        lsn=Lsn(50), documents=documents, type_names={INT4: "integer", TEXT: "text"}
    )


def relation(
    *columns: Column,
    oid: int = 1,
    name: str = "users",
    identity: ReplicaIdentity = ReplicaIdentity.DEFAULT,
) -> Relation:
    return Relation(
        oid=oid,
        namespace="public",
        name=name,
        replica_identity=identity,
        columns=columns or (Column(name="id", type_oid=INT4, key=True),),
    )


def at(lsn: int, of: Relation) -> RelationVersion:
    return RelationVersion(Position(Lsn(lsn)), of)


def test_the_log_is_claimed_before_the_catalog() -> None:
    claims = catalog(document()).claims("users", [at(10, relation())], [], {})
    assert [(int(claim.position.lsn), claim.names_and_types_only) for claim in claims] == [
        (10, True),
        (50, False),
    ]


def test_other_tables_are_skipped() -> None:
    versions = [at(10, relation(name="orders", oid=2))]
    assert len(catalog(document()).claims("users", versions, [], {})) == 1


def test_a_partition_has_no_claims() -> None:
    """Its changes are sent under the name of the root, so no change needs its document."""
    partition = at(10, relation(name="users_1", oid=9))
    assert catalog(document()).claims("users_1", [partition], [], {}) == []
    stored = [{"columns": [], "lsn": "0/1", "ordinal": 0}]
    assert len(catalog(document()).claims("users_1", [partition], stored, {})) == 1


def test_a_dropped_table_keeps_its_claims_while_it_has_documents() -> None:
    stored = [{"columns": [column("id")], "key": ["id"], "lsn": "0/1", "ordinal": 0}]
    [claim] = catalog().claims("users", [at(10, relation())], stored, {})
    assert claim.document.columns[0]["column_default"] == "7"


def test_defaults_come_from_the_catalog_while_it_has_the_same_column() -> None:
    [known] = catalog(document()).of_relation(relation(), {}, None).columns
    assert (known["is_nullable"], known["column_default"]) == (False, "7")


def test_defaults_come_from_the_previous_document_if_the_type_has_changed_since() -> None:
    present = catalog(document(1, column("id", "text")))
    previous = {"columns": [column("id", column_default="8")]}
    [known] = present.of_relation(relation(), {}, previous).columns
    assert (known["data_type"], known["column_default"]) == ("integer", "8")


def test_an_unknown_column_is_nullable_and_has_no_default() -> None:
    added = Column(name="new", type_oid=OWN)
    identified = Column(name="id", type_oid=INT4, key=True)
    columns = catalog().of_relation(relation(identified, added), {OWN: "mood"}, None).columns
    assert columns[1] == {
        "name": "new",
        "position": 2,
        "data_type": "mood",
        "is_nullable": True,
        "column_default": None,
    }


def test_an_unknown_type_is_its_oid() -> None:
    [known] = catalog().of_relation(relation(Column(name="x", type_oid=OWN)), {}, None).columns
    assert known["data_type"] == str(OWN)


def test_the_key_has_the_order_of_its_index() -> None:
    marked = (Column(name="a", type_oid=INT4, key=True), Column(name="b", type_oid=INT4, key=True))
    ordered = catalog(document(1, column("a"), column("b"), key=("b", "a")))
    assert ordered.of_relation(relation(*marked), {}, None).key == ("b", "a")
    assert catalog().of_relation(relation(*marked), {}, None).key == ("a", "b")
    assert catalog().of_relation(relation(*marked), {}, {"key": ["b", "a"]}).key == ("b", "a")


def test_under_full_the_key_is_that_of_the_catalog() -> None:
    full = relation(identity=ReplicaIdentity.FULL)
    assert catalog(document(key=("x",))).of_relation(full, {}, None).key == ("x",)
    assert catalog().of_relation(full, {}, None).key == ()
