"""Any message becomes one that Pub/Sub takes, and its size is not underestimated."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.sinks.pubsub.messages import ordering_key, request_of, sizes_of, text_of
from tests.unit.sinks.rows import message_id, payload, rows, with_column

VALUES = st.binary(max_size=3000) | st.text(max_size=1500).map(str.encode)
TOPIC = "projects/shop-1/topics/orders"


@given(VALUES, VALUES)
def test_texts_are_taken_and_different(one: bytes, other: bytes) -> None:
    for value in (one, other):
        assert len(text_of(value).encode()) <= 1024
        assert 0 < len(ordering_key(value, 1).encode()) <= 1024
    assert (text_of(one) == text_of(other)) is (one == other)
    assert (ordering_key(one, 1) == ordering_key(other, 1)) is (one == other)


def test_a_request() -> None:
    batch = rows(range(3), destination=b"orders")
    batch = with_column(batch, "key", [b"42", None, b"\xff"])
    found = request_of(TOPIC, batch, ordering=True)
    assert found.topic == TOPIC
    first, second, third = found.messages
    assert [each.data for each in found.messages] == [payload(number) for number in range(3)]
    assert dict(first.attributes) == {
        "id": message_id(0).decode(),
        "key": "42",
        "destination": "orders",
        "position": "00000000016b3748-0",
    }
    assert "key" not in second.attributes
    assert second.attributes["position"] == "00000000016b3748-1"
    keys = [first.ordering_key, second.ordering_key, third.ordering_key]
    assert keys == ["42", "table-0000000000000001", third.attributes["key"]]
    unordered = request_of(TOPIC, batch, ordering=False)
    assert [each.ordering_key for each in unordered.messages] == [""] * 3


@given(VALUES, VALUES, st.binary(max_size=100), st.integers(3, 255))
def test_a_message_alone_is_no_larger_than_its_size(
    name: bytes, key: bytes, data: bytes, length: int
) -> None:
    destination = f"projects/{'p' * 100}/topics/{'t' * length}".encode()
    batch = rows([0], destination=destination)
    for column, value in (("id", name), ("key", key), ("payload", data)):
        batch = with_column(batch, column, [value])
    request = request_of(destination.decode(), batch, ordering=True)
    assert request.ByteSize() <= sizes_of(batch)[0]
