"""The contract of targets: every target passes every test."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from tailrace.change import Op
from tailrace.client import Change
from tailrace.client.names import Table
from tailrace.errors import AlreadyRunningError, ConfigError, DivergedError
from tailrace.mirror import Target, target_of
from tailrace.mirror.layout import Column, Layout
from tailrace.mirror.net import Effect
from tailrace.position import Lsn
from tests.integration.mirror.reading import places

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fix_postgres import Database
    from tests.integration.mirror.reading import Place

COLUMNS = (
    Column(name="id", position=1, data_type="integer"),
    Column(name="name", position=2, data_type="text"),
)
LAYOUT = Layout(columns=COLUMNS, key=("id",))
KEYLESS = Layout(columns=COLUMNS, key=())


@pytest.fixture(params=["sqlite", "duckdb", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path, copy: Database) -> Place:
    [place] = [place for place in places(tmp_path, copy) if place.kind == request.param]
    return place


def open_target(place: Place) -> Target:
    target = target_of(place.url, "t")
    target.open()
    return target


def bootstrap(place: Place, layout: Layout = LAYOUT, rows: int = 2) -> Target:
    """A target with the rows (0, a), (1, a), ... and the state s1."""
    target = open_target(place)
    target.begin(layout)
    target.load(target.convert([list(range(rows)), ["a"] * rows]))
    target.finish("s1")
    return target


def rows(place: Place) -> list[tuple[Any, ...]]:
    return place.rows(f"SELECT * FROM {place.name('public', 't')} ORDER BY id")


def change(op: Op, data: dict[str, Any], old: dict[str, Any] | None = None) -> Change:
    return Change(
        op=op, table=Table("public", "t"), data=data, old=old, lsn=Lsn(1), xid=1, id="1-t-0",
        timestamp=datetime(2026, 1, 1, tzinfo=UTC),
    )  # fmt: skip


def test_unfinished_bootstrap_is_discarded(place: Place) -> None:
    target = open_target(place)
    target.begin(LAYOUT)
    target.load(target.convert([[1], ["a"]]))
    target.close()
    target = target_of(place.url, "t")
    assert target.open() is None
    target.begin(LAYOUT)
    target.load(target.convert([[2], ["b"]]))
    # Superseded by another snapshot.
    target.begin(LAYOUT)
    target.load(target.convert([[3], ["c"]]))
    target.finish("s1")
    target.close()
    assert rows(place) == [(3, "c")]


def test_new_bootstrap_replaces_the_old_rows_atomically(place: Place) -> None:
    target = bootstrap(place)
    wider = Layout(
        columns=(*COLUMNS, Column(name="more", position=3, data_type="boolean")), key=("name",)
    )
    target.begin(wider)
    target.load(target.convert([[7], ["b"], [True]]))
    target.rollback()
    target.idle()
    assert rows(place) == [(0, "a"), (1, "a")]
    target.begin(wider)
    target.load(target.convert([[7], ["b"], [True]]))
    target.finish("s2")
    target.apply(Effect(rows=[{"id": 8, "name": "b", "more": None}]))
    target.commit("s3")
    target.close()
    assert rows(place) == [(8, "b", None)]


def test_uncommitted_changes_are_discarded(place: Place) -> None:
    target = bootstrap(place)
    target.apply(Effect(removed=[(0,)], rows=[{"id": 1, "name": "b"}, {"id": 2, "name": "c"}]))
    target.close()
    stored = target.open()
    assert stored is not None
    assert (stored.state, stored.layout) == ("s1", LAYOUT)
    target.apply(Effect(removed=[(0,)], rows=[{"id": 1, "name": "b"}, {"id": 2, "name": "c"}]))
    target.apply(Effect(truncated=True, rows=[{"id": 1, "name": "d"}]))
    target.commit("s2")
    target.close()
    assert rows(place) == [(1, "d")]


def test_second_mirror_is_detected(place: Place) -> None:
    one, other = bootstrap(place), open_target(place)
    one.idle()
    other.apply(Effect(removed=[(0,)]))
    other.commit("s2")
    other.close()
    one.apply(Effect(removed=[(1,)]))
    with pytest.raises(AlreadyRunningError):
        one.commit("s2")
    one.close()


def test_table_that_is_not_a_mirror_is_not_touched(place: Place) -> None:
    bootstrap(place).close()
    place.rows("DELETE FROM _tailrace_mirrors RETURNING 1")
    target = target_of(place.url, "t")
    with pytest.raises(ConfigError, match="not a mirror"):
        target.open()
    target.close()
    assert rows(place) == [(0, "a"), (1, "a")]


def test_table_without_a_key(place: Place) -> None:
    target = bootstrap(place, KEYLESS, 1)
    same = {"id": 5, "name": None}
    target.replay([change(Op.INSERT, same), change(Op.INSERT, same), change(Op.DELETE, same)])
    target.replay([change(Op.UPDATE, {"id": 6, "name": "x"}, old={"id": 0, "name": "a"})])
    target.commit("s2")
    target.idle()
    assert rows(place) == [(5, None), (6, "x")]
    with pytest.raises(DivergedError, match="no row like the old row"):
        target.replay([change(Op.DELETE, {"id": 9, "name": "y"})])
    target.rollback()
    with pytest.raises(DivergedError, match="does not have the old row") as caught:
        target.replay([change(Op.UPDATE, {"id": 6, "name": "z"})])
    target.rollback()
    target.close()
    assert "REPLICA IDENTITY FULL" in caught.value.hint


def test_missing_row_is_an_error(place: Place) -> None:
    target = bootstrap(place)
    for effect in (
        Effect(patches=[((9,), {"id": 9})]),
        Effect(moves=[((9,), {"id": 10})]),
    ):
        with pytest.raises(DivergedError, match="has no row 9"):
            target.apply(effect)
        target.rollback()
    target.close()
