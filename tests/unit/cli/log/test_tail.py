"""Which changes `tailrace tail` shows."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tailrace.change import Change, Op
from tailrace.cli.log.tail import Selection
from tailrace.log.choice import of_tables
from tailrace.position import Lsn, Position
from tailrace.schema import Relation, ReplicaIdentity


def change(namespace: str = "", name: str = "") -> Change:
    relation = Relation(
        oid=1,
        namespace=namespace,
        name=name,
        replica_identity=ReplicaIdentity.DEFAULT,
        columns=(),
    )
    return Change(
        position=Position(Lsn(1)),
        op=Op.TRUNCATE if name else Op.MESSAGE,
        xid=1,
        committed_at=datetime(2026, 1, 1, tzinfo=UTC),
        relation=relation if name else None,
    )


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        ("orders", True),
        ("sales.orders", True),
        ("ord*", True),
        ("sales.*", True),
        ("*.orders", True),
        ("*", True),
        ("order[rs]*", True),
        ("public.orders", False),
        ("order", False),
        ("Orders", False),
        ("sales", False),
    ],
)
def test_patterns(pattern: str, fits: bool) -> None:
    assert of_tables(change("sales", "orders"), [pattern]) is fits
    assert of_tables(change("sales", "orders"), ["nothing", pattern]) is fits


def test_a_message_has_no_table() -> None:
    assert not of_tables(change(), ["*"])
    assert Selection().takes(change())


def test_the_limit_counts_shown_changes() -> None:
    selection = Selection(tables=["a"], limit=2)
    assert not selection.takes(change("public", "b"))
    assert selection.takes(change("public", "a"))
    assert not selection.done
    assert selection.takes(change("public", "a"))
    assert selection.done
    assert not Selection().done
