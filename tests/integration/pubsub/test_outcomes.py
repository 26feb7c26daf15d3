"""Requests that fail, at a server and on connections that fail as Google's do."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tailrace.errors import SinkRefusedError, SinkUnreachableError
from tailrace.position import ORIGIN
from tailrace.sinks.contract import Lane
from tailrace.sinks.outcome import Verdict
from tailrace.sinks.pubsub.sink import PubSub
from tailrace.sinks.retry import Retry
from tailrace.testing.proxy import TcpProxy
from tests.integration.pubsub.opening import (
    SINK,
    deliver,
    keyed,
    number_of,
    opened,
    settings_of,
)
from tests.unit.sinks.rows import message_id, payload

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa

    from tailrace.sinks.contract import Receipt
    from tailrace.sinks.outcome import Outcome
    from tests.pubsub import PubSubServer, Topics

ONCE = Retry(attempts=1)
OFTEN = Retry(attempts=50, first_s=0.001, max_s=0.02)
UNAVAILABLE, EXHAUSTED, DENIED, INVALID = 14, 8, 7, 3


def publish_fault(code: int, **keys: Any) -> dict[str, Any]:
    return {"method": "Publish", "code": code, "message": "as a test wants", **keys}


def numbers(receipt: Receipt) -> list[int]:
    ids = [message["id"][0].as_py() for message, _ in receipt.failures]
    return [next(n for n in range(1000) if message_id(n) == name) for name in ids]


def order_of(topics: Topics, topic: str, keys: str) -> dict[str, list[int]]:
    """The numbers of the messages of each key, in the order of their arrival."""
    order = defaultdict(list)
    for each in topics.received(topic):
        number = number_of(each.data)
        order[keys[number]].append(number)
    return order


def expected(keys: str) -> dict[str, list[int]]:
    return {key: [at for at, each in enumerate(keys) if each == key] for key in set(keys)}


@pytest.mark.parametrize("ordering", [True, False])
def test_a_refused_message_is_a_failure_and_holds_back_its_key(
    pubsub: PubSubServer, topics: Topics, ordering: bool
) -> None:
    """The server refuses the whole request, and its messages are sent one by one."""
    topic = topics.create(topics.unused())
    pubsub.fail(publish_fault(INVALID, contains="1\r\n"))
    with opened(pubsub, ordering=ordering) as sink:
        receipt = deliver(sink, keyed(topic, "abcbac"))
    assert receipt.messages == 4
    assert numbers(receipt) == [1, 3]
    refused, unsent = (outcome for _, outcome in receipt.failures)
    assert (refused.verdict, refused.code) == (Verdict.REFUSED, "INVALID_ARGUMENT")
    assert refused.response == "as a test wants"
    assert unsent.verdict is Verdict.UNSENT
    found = {each.data for each in topics.received(topic)}
    assert found == {payload(number) for number in (0, 2, 4, 5)}


@pytest.mark.parametrize("ordering", [True, False])
def test_a_failed_request_is_sent_again_and_no_key_overtakes(
    pubsub: PubSubServer, topics: Topics, ordering: bool, seed: int
) -> None:
    rng = random.Random(seed)
    topic = topics.create(topics.unused())
    pubsub.fail(publish_fault(UNAVAILABLE, share=0.3), publish_fault(10, share=0.1))
    keys = "".join(rng.choice("abcdefghij") for _ in range(60))
    with opened(pubsub, OFTEN, ordering=ordering, batch_rows=3) as sink:
        assert deliver(sink, keyed(topic, keys)).messages == 60
    assert order_of(topics, topic, keys) == expected(keys)


def test_connections_that_are_cut(pubsub: PubSubServer, topics: Topics, seed: int) -> None:
    """GIVEN connections that break all the time WHEN keys are sent many times THEN nothing is lost,
    and keys first arrive in their order."""
    rng = random.Random(seed)
    topic = topics.create(topics.unused())
    keys = "".join(rng.choice("abcdefgh") for _ in range(400))
    batch = keyed(topic, keys)
    with (
        TcpProxy("127.0.0.1", pubsub.port) as proxy,
        opened(pubsub, OFTEN, endpoint_url=f"http://127.0.0.1:{proxy.port}", batch_rows=2) as sink,
    ):
        accepted = 0
        for start in range(0, 400, 20):
            assert sink.inspect(batch.slice(start, 20)) == {}
            sink.write(batch.slice(start, 20))
            proxy.cut()
            accepted += sink.flush().messages
    assert accepted == 400
    first = {
        key: list(dict.fromkeys(found)) for key, found in order_of(topics, topic, keys).items()
    }
    assert first == expected(keys)


def test_a_service_that_is_too_busy_is_not_asked_for_a_while(
    pubsub: PubSubServer, topics: Topics
) -> None:
    """A pause counts no attempts, and is as long as the RetryInfo says."""
    topic = topics.create(topics.unused())
    pubsub.fail(
        publish_fault(EXHAUSTED, count=1, retry_delay_ms=300), publish_fault(EXHAUSTED, count=2)
    )
    with opened(pubsub, ONCE) as sink:
        assert deliver(sink, keyed(topic, "ab")).messages == 2
    assert {each.data for each in topics.received(topic)} == {payload(0), payload(1)}


def test_a_service_that_stays_too_busy_is_unreachable(pubsub: PubSubServer) -> None:
    pubsub.fail(publish_fault(EXHAUSTED, retry_delay_ms=100))
    with (
        opened(pubsub, Retry(max_elapsed_s=0.3)) as sink,
        pytest.raises(SinkUnreachableError, match="RESOURCE_EXHAUSTED"),
    ):
        deliver(sink, keyed("orders", "a"))


def test_a_service_that_always_fails_is_unreachable(pubsub: PubSubServer) -> None:
    pubsub.fail(publish_fault(UNAVAILABLE))
    with opened(pubsub) as sink, pytest.raises(SinkUnreachableError, match="UNAVAILABLE"):
        deliver(sink, keyed("orders", "ab"))


def test_a_missing_permission_stops_all_messages(pubsub: PubSubServer) -> None:
    pubsub.fail(publish_fault(DENIED))
    with opened(pubsub) as sink, pytest.raises(SinkRefusedError, match="/topics/orders") as caught:
        deliver(sink, keyed("orders", "ab"))
    assert "roles/pubsub.publisher" in caught.value.hint


def test_keys_with_the_same_hash_are_sent_one_by_one(
    pubsub: PubSubServer, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine takes them for one key. The server refuses requests with two."""
    topic = topics.create(topics.unused())
    same = partial(np.full, fill_value=7, dtype=np.uint64)
    monkeypatch.setattr("tailrace.sinks.groups.hash_of", lambda keys: same(len(keys)))
    with opened(pubsub) as sink:
        assert deliver(sink, keyed(topic, "aabb")).messages == 4
    found = [(each.ordering_key, number_of(each.data)) for each in topics.received(topic)]
    assert found == [("a", 0), ("a", 1), ("b", 2), ("b", 3)]


def test_a_key_has_one_request_at_a_time(pubsub: PubSubServer, topics: Topics) -> None:
    topic = topics.create(topics.unused())
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()

    @contextmanager
    def counted(rows: pa.RecordBatch) -> Iterator[None]:
        [key] = set(rows["key"].to_pylist())
        running[key] += 1
        most[key] = max(most[key], running[key])
        yield
        running[key] -= 1

    class Counting(PubSub):
        def send(self, connection: Any, rows: pa.RecordBatch) -> Mapping[int, Outcome]:
            with counted(rows):
                return super().send(connection, rows)

    keys = "abcd" * 50
    sink = Counting(settings_of(pubsub, batch_rows=5), Lane(pipeline="test"))
    sink.open(ORIGIN)
    assert deliver(sink, keyed(topic, keys)).messages == 200
    sink.close()
    assert set(most.values()) == {1}
    assert order_of(topics, topic, keys) == expected(keys)


def test_a_replay_repeats_nothing_that_was_accepted(
    pubsub: PubSubServer, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create(topics.unused())
    batch = keyed(topic, "abab")
    for receipt in ((4, 0), (0, 4)):
        sink = SINK.open(settings_of(pubsub), Lane(pipeline="test", folder=tmp_path))
        sink.open(ORIGIN)
        found = deliver(sink, batch)
        assert (found.messages, found.duplicates) == receipt
        sink.close()
    assert len(topics.received(topic)) == 4
