"""The net effect of changes equals the effect of all changes, one after another."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.change import Op
from tailrace.client import Change
from tailrace.client.names import Table
from tailrace.errors import DivergedError
from tailrace.mirror.layout import Column, Layout
from tailrace.mirror.net import Effect, NetChanges
from tailrace.position import Lsn

LAYOUT = Layout(
    columns=(
        Column(name="id", position=1, data_type="integer"),
        Column(name="small", position=2, data_type="text"),
        Column(name="large", position=3, data_type="text"),
    ),
    key=("id",),
)
Rows = dict[int, dict[str, Any]]


def change(op: Op, data: dict[str, Any], **more: Any) -> Change:
    return Change(
        op=op, table=Table("public", "t"), data=data, lsn=Lsn(1), xid=1, id="1-t-0",
        timestamp=datetime(2026, 1, 1, tzinfo=UTC), **more,
    )  # fmt: skip


def run_step(rows: Rows, step: tuple[Any, ...]) -> Change | None:  # noqa: PLR0911
    """Change a table; the change that PostgreSQL sends for it, if any."""
    match step:
        case "insert", at, _, text:
            if at in rows:
                return None
            rows[at] = {"id": at, "small": text, "large": f"large {text}"}
            return change(Op.INSERT, {**rows[at]})
        case "update", at, to, text:
            if at not in rows or (to != at and to in rows):
                return None
            row = rows.pop(at) | {"id": to, "small": text}
            rows[to] = row
            old = {"id": at} if to != at else None
            return change(Op.UPDATE, {"id": to, "small": text}, old=old, unchanged=("large",))
        case "whole", at, to, text:
            if at not in rows or (to != at and to in rows):
                return None
            del rows[at]
            rows[to] = {"id": to, "small": text, "large": text}
            return change(Op.UPDATE, {**rows[to]}, old={"id": at} if to != at else None)
        case "delete", at, _, _:
            if at not in rows:
                return None
            del rows[at]
            return change(Op.DELETE, {"id": at, "small": None, "large": None})
        case _:
            rows.clear()
            return change(Op.TRUNCATE, {})


def apply(rows: Rows, effect: Effect) -> Rows:
    """Apply an effect step by step, as the contract of targets says."""
    moved = [rows[base[0]] | columns for base, columns in effect.moves]
    after = {} if effect.truncated else {**rows}
    for key in effect.removed:
        after.pop(key[0], None)
    for key, columns in effect.patches:
        after[key[0]] = after[key[0]] | columns
    for row in [*effect.rows, *moved]:
        after[row["id"]] = {**row}
    return after


STEPS = st.tuples(
    st.sampled_from(["insert", "insert", "update", "update", "whole", "delete", "truncate"]),
    st.integers(0, 4),
    st.integers(0, 4),
    st.sampled_from("abc"),
)


@given(before=st.lists(st.integers(0, 4), unique=True), steps=st.lists(STEPS, max_size=12))
def test_net_effect_equals_the_effect_of_all_changes(
    before: list[int], steps: list[tuple[str, int, int, str]]
) -> None:
    start: Rows = {at: {"id": at, "small": "s", "large": f"large {at}"} for at in before}
    rows = {at: {**row} for at, row in start.items()}
    changes = [change for step in steps if (change := run_step(rows, step)) is not None]
    net = NetChanges(LAYOUT)
    net.add(changes)
    effect = net.effect()
    assert apply(start, effect) == rows
    keys = [
        *effect.removed,
        *(key for key, _ in effect.patches),
        *((row["id"],) for row in effect.rows),
        *((row["id"],) for _, row in effect.moves),
    ]
    assert len(keys) == len(set(keys))


def test_unchanged_values_come_from_the_old_row_of_replica_identity_full() -> None:
    net = NetChanges(LAYOUT)
    old = {"id": 1, "small": "a", "large": "big"}
    net.add([change(Op.UPDATE, {"id": 1, "small": "b"}, old=old, unchanged=("large",))])
    assert net.effect().rows == [{"id": 1, "small": "b", "large": "big"}]


@pytest.mark.parametrize("kind", ["double precision", "jsonb"])
def test_keys_of_nan_and_json_are_compared_by_text(kind: str) -> None:
    layout = Layout(columns=(Column(name="id", position=1, data_type=kind),), key=("id",))
    value: Any = float("nan") if kind == "double precision" else {"a": [1]}
    net = NetChanges(layout)
    net.add([change(Op.INSERT, {"id": value}), change(Op.DELETE, {"id": value})])
    assert len(net.effect().removed) == 1
    assert net.effect().rows == []


def test_change_without_its_key_is_refused() -> None:
    net = NetChanges(LAYOUT)
    with pytest.raises(DivergedError, match="does not have the key columns id"):
        net.add([change(Op.DELETE, {"id": None, "small": None, "large": None})])


def test_unchanged_value_of_a_missing_row_is_refused() -> None:
    net = NetChanges(LAYOUT)
    with pytest.raises(DivergedError, match="large value"):
        net.add(
            [
                change(Op.TRUNCATE, {}),
                change(Op.UPDATE, {"id": 1, "small": "b"}, unchanged=("large",)),
            ]
        )
