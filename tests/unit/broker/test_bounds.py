"""Counts and lengths are checked before a request is parsed."""

from __future__ import annotations

import contextlib
import io
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema
from kio.serial import entity_writer

from tailrace.broker import bounds, wire
from tailrace.errors import MalformedError


def body(version: int, topics: list[str] | None) -> tuple[Any, bytes]:
    kind: Any = load_request_schema(3, version)
    named = None if topics is None else [{"name": name} for name in topics]
    fields = {
        "topics": named,
        "allow_auto_topic_creation": True,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    buffer = io.BytesIO()
    entity_writer(kind)(buffer, wire.build(kind, fields))
    return kind, buffer.getvalue()


@pytest.mark.parametrize("version", [1, 9])
@pytest.mark.parametrize("topics", [None, [], ["a"], ["a" * 200] * 100])
def test_valid_requests_pass(version: int, topics: list[str] | None) -> None:
    kind, data = body(version, topics)
    bounds.check(data, 0, kind)
    bounds.check(b"header" + data, 6, kind)


@pytest.mark.parametrize("version", [1, 9])
@given(st.data())
def test_truncated_requests_are_refused(version: int, data: st.DataObject) -> None:
    kind, whole = body(version, ["orders", "bills"])
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(MalformedError):
        bounds.check(whole[:cut], 0, kind)


def test_a_count_that_cannot_be_true_is_refused() -> None:
    kind: Any = load_request_schema(3, 1)
    with pytest.raises(MalformedError, match=r"claims 2,147,483,647 elements in 0 bytes"):
        bounds.check(struct.pack(">i", 2**31 - 1), 0, kind)


def test_null_where_it_is_not_allowed_is_refused() -> None:
    kind: Any = load_request_schema(3, 1)
    data = struct.pack(">ih", 1, -1)
    with pytest.raises(MalformedError, match="null"):
        bounds.check(data, 0, kind)


def test_a_varint_without_an_end_is_refused() -> None:
    kind: Any = load_request_schema(3, 9)
    with pytest.raises(MalformedError, match="varint"):
        bounds.check(b"\xff" * 10, 0, kind)


@given(st.binary(max_size=100), st.sampled_from([1, 9]))
def test_random_bytes_raise_no_other_error(data: bytes, version: int) -> None:
    kind: Any = load_request_schema(3, version)
    with contextlib.suppress(MalformedError):
        bounds.check(data, 0, kind)


@pytest.mark.parametrize("version", [1, 9])
def test_too_many_names_are_refused(version: int) -> None:
    kind, data = body(version, ["t"] * 10_000)
    bounds.check(data, 0, kind)
    kind, data = body(version, ["t"] * 10_001)
    with pytest.raises(MalformedError, match="10,001 elements, max is 10,000"):
        bounds.check(data, 0, kind)


def test_too_many_elements_in_all_are_refused() -> None:
    """ListOffsets of 1,000 topics with 99 and with 100 partitions each."""
    kind: Any = load_request_schema(2, 1)
    for partitions, fits in ((99, True), (100, False)):
        topic = struct.pack(">h", 1) + b"t" + struct.pack(">i", partitions) + bytes(12 * partitions)
        data = struct.pack(">ii", -1, 1000) + topic * 1000
        if fits:
            bounds.check(data, 0, kind)
            continue
        with pytest.raises(MalformedError, match="more than 100,000 elements in all"):
            bounds.check(data, 0, kind)
