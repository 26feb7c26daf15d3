"""The demo's picture: its content, its size, and what is escaped."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from tailrace.change import Op
from tailrace.cli.demo.arrival import Arrival
from tailrace.cli.demo.meter import Latency
from tailrace.cli.demo.view import (
    Lines,
    Picture,
    Screen,
    change_line,
    columns,
    draw,
    key,
    open_view,
    sentence,
    sparkline,
)

KEYS = {"orders": ("id",), "order_items": ("order_id", "line")}
PLACES = [("PostgreSQL", "psql 'host=127.0.0.1 port=5432'"), ("NATS", "nats://127.0.0.1:4222")]


def arrival(op: Op, table: str = "orders", **fields: Any) -> Arrival:
    known: dict[str, Any] = {
        "data": {},
        "old": {},
        "unchanged": (),
        "committed_at": 100.0,
        "received_at": 100.125,
    }
    return Arrival(op=op, table=table, **known | fields)


INSERT = arrival(Op.INSERT, data={"id": 7, "total": "12.50", "vip": True, "note": None})


def picture(*recent: Arrival, **fields: Any) -> Picture:
    known: dict[str, Any] = {
        "places": PLACES,
        "processes": ["capture streaming (pid 7)"],
        "received": 1234,
        "pending": 3,
        "per_second": 14.2,
        "history": [0, 1, 4, 8],
        "latency": Latency(p50_ms=112.4, p99_ms=1180),
        "keys": KEYS,
    }
    return Picture(recent=recent, **known | fields)


def drawn(what: RenderableType, width: int = 100) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, markup=False, highlight=False).print(what)
    return out.getvalue().splitlines()


def test_the_picture_shows_all_figures() -> None:
    text = "\n".join(drawn(draw(picture(INSERT), height=40)))
    for words in (
        "psql 'host=127.0.0.1 port=5432'",
        "nats://127.0.0.1:4222",
        "capture streaming (pid 7)",
        "14 changes/s   ▁▄█",
        "1,234 received  3 pending  commit → received p50 112 ms, p99 1,180 ms",
        "Ctrl-C stops",
    ):
        assert words in text
    assert re.search(r"INSERT +orders +7 +total: 12.50  vip: true  note: NULL +12[45] ms", text)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (200, 60), (60, 12)])
def test_the_picture_fits_the_terminal(width: int, height: int) -> None:
    lines = drawn(draw(picture(*[INSERT] * 100), height=height), width)
    assert all(len(line) <= width for line in lines)
    assert len(lines) <= max(height, 16)
    assert any("INSERT" in line for line in lines)


def test_a_note_replaces_the_hint() -> None:
    assert drawn(draw(picture(INSERT, note="closing"), height=40))[-1].strip() == "closing"


def test_a_changed_key_is_shown_with_its_old_value() -> None:
    moved = arrival(
        Op.UPDATE,
        "order_items",
        data={"order_id": 1, "line": 101, "quantity": 2},
        old={"order_id": 1, "line": 1},
    )
    assert key(moved, KEYS["order_items"]) == "1, 101"
    assert list(columns(moved, KEYS["order_items"])) == ["line: 1 → 101", "quantity: 2"]


def test_an_unchanged_value_is_not_null() -> None:
    update = arrival(Op.UPDATE, data={"id": 7, "note": None}, unchanged=("photo",))
    assert list(columns(update, ("id",))) == ["note: NULL", "photo: ⟨unchanged⟩"]


def test_deletes_truncates_and_messages() -> None:
    delete = arrival(Op.DELETE, data={"id": 7, "note": None})
    assert change_line(delete, KEYS) == "DELETE  orders  7"
    assert change_line(arrival(Op.TRUNCATE), KEYS) == "TRUNCATE  orders"
    message = arrival(Op.MESSAGE, "shop.note", data={"prefix": "shop.note", "content": "hello"})
    assert change_line(message, KEYS) == "MESSAGE  shop.note  hello"


def test_long_values_are_cut() -> None:
    (shown,) = columns(arrival(Op.INSERT, data={"text": "x" * 1000}), ())
    assert shown == f"text: {'x' * 27}…"
    assert key(arrival(Op.INSERT, data={"id": "y" * 36}), ("id",)) == f"{'y' * 12}…"


@given(name=st.text(), table=st.text(), value=st.text(), op=st.sampled_from(Op))
def test_control_characters_are_escaped(name: str, table: str, value: str, op: Op) -> None:
    row = {name: value, "content": value}
    found = arrival(op, table, data=row, old={name: value + "!"}, unchanged=(name,))
    keys = {table: (name,)}
    for line in [*drawn(draw(picture(found, keys=keys), height=40)), change_line(found, keys)]:
        assert re.search(r"[\x00-\x1f\x7f-\x9f\u202e]", line) is None


def test_the_figures_on_one_line() -> None:
    assert sentence(picture(latency=None)) == (
        "1,234 changes received · 14 changes/s · 3 pending · commit → received —"
    )


@given(st.lists(st.integers(0, 10**9)))
def test_one_bar_per_value_and_none_for_zero(values: list[int]) -> None:
    line = sparkline(values)
    assert len(line) == len(values)
    assert [bar == " " for bar in line] == [value == 0 for value in values]
    assert not any(values) or "█" in line
    assert list(sparkline(sorted(values))) == sorted(line)


def test_off_a_terminal_the_view_prints_lines() -> None:
    out = io.StringIO()
    view = open_view(Console(file=out, width=200, markup=False, highlight=False))
    assert isinstance(view, Lines)
    view.step("starting")
    view.show(picture())
    view.show(picture(INSERT))
    view.show(picture(INSERT, INSERT))
    view.close()
    lines = out.getvalue().splitlines()
    assert lines[:3] == [
        "· starting",
        "· PostgreSQL: psql 'host=127.0.0.1 port=5432'",
        "· NATS: nats://127.0.0.1:4222",
    ]
    assert re.fullmatch(r"· first change after [\d.]+ s: INSERT  orders  7  total: .*", lines[3])
    assert all("changes received" in line for line in lines[4:])


def test_on_a_terminal_steps_are_ticked_off_and_the_last_picture_stays() -> None:
    out = io.StringIO()
    view = Screen(Console(file=out, width=100, height=40, force_terminal=True, color_system=None))
    view.step("starting")
    view.step("running")
    view.show(picture(INSERT))
    view.close()
    view.close()
    text = out.getvalue()
    assert "✓ starting" in text
    assert "INSERT" in text.rpartition("tailrace demo")[2]
    assert text.endswith("\x1b[?25h")
