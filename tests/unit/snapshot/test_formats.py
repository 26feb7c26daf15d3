"""Messages that are already in the stream are not published again, in every format."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tailrace.encode.creek import schema as creek
from tailrace.errors import PostgresRefusedError
from tailrace.postgres.names import TableName
from tailrace.snapshot.formats import Copied, CreekFormat, Rows, StoredMessages

ITEMS = TableName("public", "items")
TOPIC = "CREEK.shop.snap.public.items.x"


class Read:
    """A publisher that reads these ids back from the stream."""

    def __init__(self, ids: list[bytes]) -> None:
        self._ids = ids

    def ids(self, subject: str, *, after: int) -> list[bytes]:
        assert (subject, after) == (TOPIC, 7)
        return self._ids


def batch(ids: pa.BinaryArray) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": ids, "payload": ids})


@given(st.data(), st.integers(0, 50), st.lists(st.integers(0, 50), max_size=3))
def test_each_row_is_published_once(data: st.DataObject, rows: int, cuts: list[int]) -> None:
    form = CreekFormat(id="s", table=ITEMS, pipeline="shop", topic=TOPIC)
    whole = [b"s-1-%d" % row for row in range(rows)]
    before = data.draw(st.lists(st.sampled_from(whole), unique=True) if whole else st.just([]))
    others = [b"s-head", b"s-11-0", b"s-0-3", b""]
    stored = form.stored(Read([*others, *before]), 1, 7)  # type: ignore[arg-type]
    bounds = sorted({0, rows, *(min(cut, rows) for cut in cuts)})
    after: list[bytes] = []
    for first, end in pairwise(bounds):
        messages = batch(form._ids(1, first, end - first))
        assert messages["id"].to_pylist() == whole[first:end]
        after += stored.missing(messages)["id"].to_pylist()
    assert sorted([*before, *after]) == sorted(whole)


def test_nothing_stored() -> None:
    messages = batch(pa.array([b"a"], pa.binary()))
    assert StoredMessages("id", pa.array([], pa.binary())).missing(messages) is messages


def test_failures_of_all_formats() -> None:
    error = PostgresRefusedError("gone", hint="Ask again.")
    expected = b'{"error":"gone","code":"REFUSED","hint":"Ask again."}'
    for begun in (False, True):
        creek_error = CreekFormat(id="s", table=ITEMS, pipeline="shop", topic=TOPIC).failed(
            error, begun=begun
        )
        assert creek_error.destination == TOPIC
        assert creek_error.headers == (("Tailrace-Error", "REFUSED"),)
        # Creek's clients take every packet after the header for a row.
        assert creek.unpacked(creek_error.payload) == (None if begun else expected)
        assert creek_error.payload.endswith(expected)
    for kind, subject in ((Rows, "init.meta.items"), (Copied, "init.copymeta.items")):
        form = kind(id="s", table=ITEMS, pipeline="shop", encoding="json", chunk_rows=10)
        assert form.failed(error, begun=True).destination == subject
        assert form.failed(error, begun=True).id == "s-failed"
