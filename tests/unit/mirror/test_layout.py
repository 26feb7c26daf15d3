"""What makes one layout of another."""

from __future__ import annotations

from tailrace.mirror.layout import Alteration, Column, Layout


def layout(*columns: tuple[str, int, str]) -> Layout:
    return Layout(
        columns=tuple(Column(name=n, position=p, data_type=t) for n, p, t in columns), key=("id",)
    )


BEFORE = layout(("id", 1, "integer"), ("a", 2, "text"), ("b", 3, "integer"))


def test_columns_are_known_by_their_names() -> None:
    after = layout(("id", 1, "integer"), ("b", 3, "bigint"), ("c", 4, "text"))
    found = Alteration.between(BEFORE, after)
    assert found.dropped == ("a",)
    assert [column.name for column in found.retyped] == ["b"]
    assert [column.name for column in found.added] == ["c"]
    assert found.moved == ()


def test_a_column_dropped_and_made_again_is_another() -> None:
    after = layout(("id", 1, "integer"), ("b", 3, "integer"), ("a", 4, "text"))
    found = Alteration.between(BEFORE, after)
    assert [column.name for column in found.moved] == ["a"]


def test_alike() -> None:
    assert Alteration.between(BEFORE, BEFORE) == Alteration()
    assert Layout.load(BEFORE.dump()) == BEFORE
