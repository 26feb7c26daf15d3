"""Chunks contain every row once and in order, within their limits, for any decoder."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.change import Op
from tailrace.encode.chunks import Chunker, EncodedChunk
from tailrace.schema import Column
from tests.unit.encode.groups import group, image, table

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace.encode.shapes.shape_type import Encoding

ITEMS = table(Column(name="id", type_oid=20, key=True), Column(name="v", type_oid=25), name="items")
FACTS = {"table": "items", "operation": "snapshot", "snapshot_id": "s-1", "lsn": "0/10"}
DECODE: dict[str, Callable[[bytes], Any]] = {
    "json": msgspec.json.decode,
    "msgpack": msgspec.msgpack.decode,
}


def chunks(
    texts: list[str | None], cuts: list[int], encoding: Encoding, **limits: int
) -> list[EncodedChunk]:
    """The chunks of rows in several groups."""
    made = Chunker(FACTS, encoding=encoding, **({"max_rows": 4, "max_bytes": 1 << 20} | limits))
    found: list[EncodedChunk] = []
    bounds = sorted({0, len(texts), *(cut % (len(texts) + 1) for cut in cuts)})
    for start, end in pairwise(bounds):
        ids = [str(number).encode() for number in range(start, end)]
        values = [None if text is None else text.encode() for text in texts[start:end]]
        found += made.take(group(Op.READ, ITEMS, end - start, after=image(ids, values)))
    return [*found, *made.rest()]


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
@given(
    st.lists(st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0"))),
    st.lists(st.integers(0)),
)
def test_chunks_contain_all_rows_once_in_order(
    encoding: Encoding, texts: list[str | None], cuts: list[int]
) -> None:
    found = chunks(texts, cuts, encoding, number=3, step=2)
    documents: list[dict[str, Any]] = [DECODE[encoding](chunk.payload) for chunk in found]
    rows = [row for document in documents for row in document["data"]]
    assert rows == [{"id": number, "v": text} for number, text in enumerate(texts)]
    assert [document["chunk"] for document in documents] == [3 + 2 * at for at in range(len(found))]
    assert [chunk.rows for chunk in found] == [len(document["data"]) for document in documents]
    assert all(document | FACTS == document for document in documents)
    assert [chunk.rows for chunk in found[:-1]] == [4] * len(found[:-1])
    # Whatever way the rows come, the chunks are the same.
    assert found == chunks(texts, [], encoding, number=3, step=2)


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_chunks_stay_within_the_byte_limit(encoding: Encoding) -> None:
    found = chunks(["x" * 300] * 20, [7], encoding, max_rows=1000, max_bytes=4000)
    assert len(found) > 1
    assert all(len(chunk.payload) <= 4000 for chunk in found)
    assert sum(chunk.rows for chunk in found) == 20


def test_a_row_larger_than_the_limit_has_its_own_chunk() -> None:
    found = chunks(["a", "x" * 9000, "b"], [], "json", max_bytes=4000)
    assert [chunk.rows for chunk in found] == [1, 1, 1]
