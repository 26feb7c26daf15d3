"""The differences between layouts."""

from __future__ import annotations

from tailrace.mirror.layout import Alteration, Column, Layout


def layout(*columns: tuple[str, int, str]) -> Layout:
    return Layout(
        columns=tuple(Column(name=n, position=p, data_type=t) for n, p, t in columns), key=("id",)
    )


BEFORE = layout(("id", 1, "integer"), ("a", 2, "text"), ("b", 3, "integer"))


def test_columns_are_compared_by_name() -> None:
    after = layout(("id", 1, "integer"), ("b", 3, "bigint"), ("c", 4, "text"))
    change = Alteration.between(BEFORE, after)
    assert change.dropped == ("a",)
    assert [column.name for column in change.retyped] == ["b"]
    assert [column.name for column in change.added] == ["c"]
    assert change.moved == ()


def test_column_that_was_dropped_and_created_again_is_moved() -> None:
    after = layout(("id", 1, "integer"), ("b", 3, "integer"), ("a", 4, "text"))
    change = Alteration.between(BEFORE, after)
    assert [column.name for column in change.moved] == ["a"]


def test_columns_without_positions_are_compared_by_order() -> None:
    def unnumbered(names: str) -> Layout:
        columns = tuple(Column(name=name, position=0, data_type="text") for name in names)
        return Layout(columns=columns, key=())

    assert Alteration.between(unnumbered("abc"), unnumbered("ac")).moved == ()
    assert Alteration.between(unnumbered("abc"), unnumbered("abcd")).moved == ()
    assert Alteration.between(unnumbered("abc"), unnumbered("acb")).moved != ()


def test_equal_layouts_and_load_after_dump() -> None:
    assert Alteration.between(BEFORE, BEFORE) == Alteration()
    assert Layout.load(BEFORE.dump()) == BEFORE
