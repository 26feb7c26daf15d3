"""Lookups are cached, and ask for the keys of many changes at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from tailrace.change import Op
from tailrace.errors import ConfigError
from tailrace.pipeline.enrich import Enricher
from tailrace.pipeline.expressions.lookups import Lookup, dump, load
from tailrace.schema import Column
from tests.unit.encode.groups import group, image, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.postgres.lookup import LookupSession, Row

TABLE = table(Column(name="id", type_oid=20, key=True))
COLUMNS = (Column(name="id", type_oid=20), Column(name="name", type_oid=25))


class Session:
    """Answers with `nID` for every key but those that are not there, and counts."""

    def __init__(self) -> None:
        self.asked: list[list[bytes]] = []
        self.rows_of: dict[bytes, list[Row]] = {}

    def rows(self, _query: str, keys: Sequence[bytes]) -> list[Row]:
        self.asked.append(list(keys))
        return [row for key in keys for row in self.rows_of.get(key, [(key, b"n" + key)])]


def lookup(**settings: Any) -> Lookup:
    defaults = {"cache_s": 10.0, "cache_rows": 100, "timeout_s": 1.0}
    return Lookup(name="c", query="", key="id", columns=COLUMNS, **{**defaults, **settings})


def enricher(session: Session, at: list[float], **settings: Any) -> Enricher:
    return Enricher([lookup(**settings)], [cast("LookupSession", session)], clock=lambda: at[0])


def found(made: Enricher, *ids: int | None) -> list[Any]:
    keys = image([None if each is None else str(each).encode() for each in ids])
    changes = group(Op.INSERT, TABLE, len(ids), after=keys)
    names: list[Any] = made.columns(changes)[1].to_pylist()
    return names


def test_a_batch_asks_once_for_each_key_that_is_not_known() -> None:
    session, at = Session(), [0.0]
    made = enricher(session, at)
    session.rows_of[b"9"] = []
    assert found(made, 1, 2, 1, None, 9) == [b"n1", b"n2", b"n1", None, None]
    assert found(made, 2, 3, 9) == [b"n2", b"n3", None]
    assert session.asked == [[b"1", b"2", b"9"], [b"3"]]
    at[0] = 10.5
    session.rows_of[b"2"] = [(b"2", b"new")]
    assert found(made, 2, None) == [b"new", None]
    assert session.asked[2:] == [[b"2"]]
    assert found(made, None) == [None]
    assert len(session.asked) == 3


@pytest.mark.parametrize("settings", [{"cache_s": 0.0}, {"cache_rows": 1}])
def test_rows_are_kept_no_longer_than_allowed(settings: dict[str, Any]) -> None:
    session = Session()
    made = enricher(session, [0.0], **settings)
    assert found(made, 1, 2) == [b"n1", b"n2"] == found(made, 1, 2)
    assert session.asked == [[b"1", b"2"]] * 2


def test_many_keys_take_several_queries() -> None:
    session = Session()
    made = enricher(session, [0.0], cache_rows=10**6)
    assert found(made, *range(25_000)) == [b"n%d" % number for number in range(25_000)]
    assert [len(each) for each in session.asked] == [10_000, 10_000, 5_000]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([(b"1", b"a"), (b"1", b"b")], "several rows for the key '1'"),
        ([(b"01", b"a")], "returned '01', which is no key of a change"),
        ([(None, b"a")], "returned NULL, which is no key"),
    ],
)
def test_a_row_that_is_of_no_key_is_an_error(rows: list[Row], reason: str) -> None:
    session = Session()
    session.rows_of[b"1"] = rows
    with pytest.raises(ConfigError, match=reason):
        found(enricher(session, [0.0]), 1)


def test_lookups_pass_through_text() -> None:
    made = lookup(first=3)
    assert load(dump([made])) == (made,)
    assert load("") == ()
