"""The fragments of catalog queries that are built, without a server."""

from __future__ import annotations

from tailrace.postgres import catalog


def test_the_replica_identity_of_any_aliases() -> None:
    assert catalog.identity_index("l", "x") == (
        "CASE l.relreplident WHEN 'd' THEN x.indisprimary WHEN 'i' THEN x.indisreplident END"
    )


def test_fragments_use_the_documented_aliases() -> None:
    for fragment in (catalog.PUBLISHED_TABLES, catalog.NAMED_TABLES, catalog.TABLE_BY_NAME):
        assert "pg_catalog.pg_class c" in fragment
        assert "pg_catalog.pg_namespace n" in fragment
    assert "i.indrelid = c.oid" in catalog.KEY_COLUMNS
