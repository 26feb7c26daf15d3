from __future__ import annotations

import re
import threading

from hypothesis import given
from hypothesis import strategies as st

from tailrace.capture.publication import TableName
from tailrace.engine import schemas
from tailrace.errors import SinkUnreachableError

names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
tables = st.builds(TableName, st.one_of(st.just("public"), names), names)


@given(tables)
def test_keys_are_what_a_bucket_takes(table: TableName) -> None:
    key = schemas.key(table)
    assert re.fullmatch(r"[-/_=.a-zA-Z0-9]+", key)
    assert not key.startswith(".")
    assert not key.endswith(".")


@given(tables, tables)
def test_no_two_tables_share_a_key(one: TableName, other: TableName) -> None:
    assert (schemas.key(one) == schemas.key(other)) == (one == other)


@given(tables)
def test_keys_can_be_read_back(table: TableName) -> None:
    def plain(part: str) -> str:
        joined = re.sub(r"=([0-9A-F]{2})", lambda found: chr(int(found[1], 16)), part)
        return joined.encode("latin-1").decode()

    *namespace, name = schemas.key(table).split(".")
    assert TableName(plain(namespace[0]) if namespace else "public", plain(name)) == table


def test_the_time_is_no_difference() -> None:
    document = schemas.Document(table=TableName("public", "t"), columns=({"name": "id"},))
    assert document.same_as(document.fields(1))
    assert document.same_as(document.fields(2))
    assert not document.same_as(document.fields(1) | {"columns": []})
    assert not document.same_as(None)
    assert not document.same_as([1])


def test_a_failure_is_tried_again_and_the_start_is_published_once() -> None:
    stop = threading.Event()
    calls: list[str] = []

    def publish() -> None:
        calls.append("publish")
        if len(calls) == 1:
            raise SinkUnreachableError("not yet")
        stop.set()

    schemas.follow([publish], lambda: False, stop)
    assert calls == ["publish", "publish"]


def test_a_change_is_published_at_once() -> None:
    stop = threading.Event()
    news = iter([False, False, True])
    calls: list[int] = []

    def changed() -> bool:
        found = next(news, None)
        if found is None:
            stop.set()
        return bool(found)

    schemas.follow([lambda: calls.append(1)], changed, stop)
    assert len(calls) == 2
