"""What a mirror does when its table is altered."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.change import Op
from tailrace.errors import ConfigError
from tailrace.mirror import schema as module
from tailrace.mirror.layout import Layout
from tailrace.mirror.schema import TableChanged, TableSchemas, matching
from tests.unit.mirror.sources.fake import USERS, FakeSource, column, schema

if TYPE_CHECKING:
    from tailrace.client import Schema

LAYOUT = Layout.of(USERS, ("id",))
ID, NAME = USERS.columns


def check(newest: Schema, before: Layout = LAYOUT) -> None:
    asyncio.run(TableSchemas(FakeSource(schema_=newest), "users", None).check(before))


def after(newest: Schema, *names: str) -> Layout:
    schemas = TableSchemas(FakeSource(schema_=newest), "users", None)
    return asyncio.run(schemas.after(LAYOUT, names))


@pytest.mark.parametrize(
    ("newest", "reason"),
    [
        (schema(ID, NAME, key=("name",)), "another key"),
        (schema(ID, column("name", "integer")), "column name has another type"),
        (schema(ID, column("name", position=9)), "column name was dropped and created again"),
        (schema(ID, column("label")), "column name may have been renamed to label"),
        (schema(ID, NAME, column("x", column_default="7")), "column x was added, possibly with"),
        (schema(ID, NAME, column("x", is_nullable=False)), "column x was added, possibly with"),
    ],
)
def test_alterations_without_events_need_a_new_snapshot(newest: Schema, reason: str) -> None:
    with pytest.raises(TableChanged, match=reason):
        check(newest)
    with pytest.raises(TableChanged, match=reason):
        after(newest, *newest.names)


def test_new_table_of_the_same_name_needs_a_new_snapshot() -> None:
    before = Layout.of(schema(ID, NAME, relation=1), ("id",))
    with pytest.raises(TableChanged, match="dropped and created again"):
        check(schema(ID, NAME, relation=2), before)
    check(schema(ID, NAME, relation=None), before)


@pytest.mark.parametrize("newest", [USERS, schema(ID), schema(ID, NAME, column("x"))])
def test_other_alterations_are_applied_to_the_target(newest: Schema) -> None:
    check(newest)
    assert after(newest, *newest.names).names == newest.names


def with_fake_time(monkeypatch: pytest.MonkeyPatch, source: FakeSource) -> TableSchemas:
    now = [0.0]

    async def sleep(delay_s: float) -> None:
        now[0] += delay_s

    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=sleep))
    return TableSchemas(source, "users", None, clock=lambda: now[0])


def test_document_that_never_matches_the_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    schemas = with_fake_time(monkeypatch, FakeSource())
    with pytest.raises(TableChanged, match="more than once"):
        asyncio.run(schemas.after(LAYOUT, ["id", "other"]))


def test_document_that_never_matches_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    schemas = with_fake_time(monkeypatch, FakeSource())
    with pytest.raises(ConfigError, match="the columns id, other, its schema document has id, na"):
        asyncio.run(schemas.layout(["id", "other"]))


def test_missing_document(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_DOCUMENT_S", 0.3)
    with pytest.raises(ConfigError, match="no schema document of users") as caught:
        asyncio.run(TableSchemas(FakeSource(schema_=None), "users", None).layout())
    assert "none" in caught.value.hint


def layout(key: Any, *, document_key: Any, before: Layout | None = None) -> tuple[str, ...]:
    source = FakeSource(schema_=schema(ID, NAME, key=document_key))
    return asyncio.run(TableSchemas(source, "users", key).layout(before=before)).key


def test_key_of_the_user_then_of_the_document_then_of_the_target() -> None:
    assert layout(["name"], document_key=("id",)) == ("name",)
    assert layout((), document_key=("id",)) == ()
    assert layout(None, document_key=("id",)) == ("id",)
    assert layout(None, document_key=None, before=LAYOUT) == ("id",)
    with pytest.raises(ConfigError, match="does not name its key") as caught:
        layout(None, document_key=None)
    assert "--key" in caught.value.hint
    with pytest.raises(ConfigError, match="no column other"):
        layout(["other"], document_key=None)


def test_matching_counts_changes_up_to_the_first_with_other_columns() -> None:
    def change(*names: str, op: Op = Op.INSERT, unchanged: tuple[str, ...] = ()) -> Any:
        return SimpleNamespace(op=op, data=dict.fromkeys(names), unchanged=unchanged)

    changes = [
        change("id", "name"),
        change("id", op=Op.UPDATE, unchanged=("name",)),
        change(op=Op.TRUNCATE),
        change("id", "name", "x"),
        change("id", "name"),
    ]
    assert matching(changes, LAYOUT) == 3
    assert matching(changes[:3], LAYOUT) == 3
    assert matching(changes[3:], LAYOUT) == 0
