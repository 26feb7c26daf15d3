"""Columns and values as SQLite stores them."""

from __future__ import annotations

from tailrace.mirror.layout import Column, Layout
from tailrace.mirror.targets.sqlite.rows import (
    can_alter,
    declaration,
    has_rowid_key,
    stored_row,
)

ID = Column(name="id", position=1, data_type="bigint")
NAME = Column(name="name", position=2, data_type="text")
SHARE = Column(name="share", position=3, data_type="double precision")


def test_single_integer_key_is_the_rowid() -> None:
    layout = Layout(columns=(ID, NAME), key=("id",))
    assert has_rowid_key(layout)
    assert declaration(ID, layout) == '"id" INTEGER PRIMARY KEY'
    assert declaration(NAME, layout) == '"name" TEXT'


def test_other_keys_are_not_the_rowid() -> None:
    for key in ((), ("name",), ("id", "name")):
        layout = Layout(columns=(ID, NAME), key=key)
        assert not has_rowid_key(layout)
        assert declaration(ID, layout) == '"id" INTEGER'


def test_alter_table_is_enough_unless_a_type_or_the_key_changes() -> None:
    before = Layout(columns=(ID, NAME), key=("id",))
    assert can_alter(before, Layout(columns=(ID, SHARE), key=("id",)))
    assert not can_alter(before, Layout(columns=(ID, NAME), key=("name",)))
    retyped = Column(name="name", position=2, data_type="integer")
    assert not can_alter(before, Layout(columns=(ID, retyped), key=("id",)))


def test_nan_is_stored_as_text() -> None:
    layout = Layout(columns=(ID, NAME, SHARE), key=("id",))
    assert stored_row(layout, {"share": float("nan"), "id": 1}) == {"id": 1, "share": "NaN"}
    assert stored_row(layout, {"share": 0.5}) == {"share": 0.5}
