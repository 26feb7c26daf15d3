"""Bodies of bulk requests, read back line by line."""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tailrace.decode import columns
from tailrace.sinks.opensearch.settings import OpenSearchSink
from tailrace.sinks.search.bulk import append_bulk, state_bulk, strings
from tests.unit.sinks.rows import rows, with_column

KEYS = st.text(max_size=8)


def settings(**keys: Any) -> OpenSearchSink:
    given_ = {"type": "opensearch", "url": "http://localhost", "mode": "append", **keys}
    return OpenSearchSink.model_validate(given_)


def lines(body: bytes) -> list[Any]:
    assert body.endswith(b"\n")
    return [json.loads(line) for line in body.split(b"\n")[:-1]]


@given(st.lists(KEYS | st.none()))
def test_strings_are_json(texts: list[str | None]) -> None:
    values = pa.array([None if text is None else text.encode() for text in texts], pa.binary())
    for found, text in zip(strings(values).to_pylist(), texts, strict=True):
        assert (None if found is None else json.loads(found)) == text


@given(st.lists(st.tuples(KEYS, KEYS | st.none(), st.booleans()), min_size=1, max_size=9))
def test_items_are_those_of_their_messages(made: list[tuple[str, str | None, bool]]) -> None:
    batch = rows(range(len(made)))
    names = [b"DEL i" if deletes else b"i" for _, _, deletes in made]
    batch = with_column(batch, "destination", [*names])
    batch = with_column(batch, "key", [key.encode() for key, _, _ in made])
    olds = [None if old is None else old.encode() for _, old, _ in made]
    batch = with_column(batch, "former", olds)
    batch = with_column(batch, "payload", [b'{"n":\n%d}' % n for n in range(len(made))])
    bulk = state_bulk(batch, columns.text_of(pa.array(range(len(made)))))
    found, at = lines(bulk.body), 0
    items = []
    for n, (key, old, deletes) in enumerate(made):
        same = {"_index": "i", "version": n, "version_type": "external_gte"}
        expected: list[Any] = [] if old is None else [{"delete": {"_id": old, **same}}]
        items += [n] * len(expected)
        expected.append({"delete" if deletes else "index": {"_id": key, **same}})
        expected += [] if deletes else [{"n": n}]
        items.append(n)
        assert found[at : at + len(expected)] == expected
        at += len(expected)
    assert at == len(found)
    assert bulk.rows.tolist() == items


def test_a_truncate_has_no_item() -> None:
    batch = with_column(rows(range(2)), "destination", [b"TRUNCATE i", b"i"])
    batch = with_column(batch, "payload", [b"{}", b"{}"])
    batch = with_column(batch, "key", [None, b"k"])
    bulk = state_bulk(batch, columns.text_of(pa.array([1, 2])))
    assert (bulk.rows.tolist(), len(lines(bulk.body))) == ([1], 2)


def test_added_documents_have_the_id_and_the_time_of_their_messages() -> None:
    batch = with_column(rows(range(2)), "payload", [b'{"n":1}', b"{}"])
    ids = [name.decode() for name in batch["id"].to_pylist()]
    found = lines(append_bulk(batch, settings(), generation=0).body)
    assert found[::2] == [{"create": {"_index": "cdc.orders.insert", "_id": name}} for name in ids]
    assert found[1::2] == [{"@timestamp": 0, "n": 1}, {"@timestamp": 0}]
    plain = lines(append_bulk(batch, settings(timestamp=""), generation=2).body)
    assert plain[0]["create"]["_id"] == f"2.{ids[0]}"
    assert plain[1::2] == [{"n": 1}, {}]


def test_binary_payloads_are_in_base64() -> None:
    batch = with_column(rows(range(2)), "key", [b'a"', None])
    found = lines(append_bulk(batch, settings(payload="binary"), generation=0).body)[1::2]
    assert [each["key"] for each in found] == ['a"', None]
    payloads = [base64.b64decode(each["payload"]) for each in found]
    assert payloads == batch["payload"].to_pylist()
    bare = settings(payload="binary", timestamp="")
    assert "@timestamp" not in lines(append_bulk(batch, bare, generation=0).body)[1]
