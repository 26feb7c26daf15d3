"""Which destinations a sink may publish to, with a cluster that needs no broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tailrace.errors import PoisonedError, SinkRefusedError
from tailrace.sinks.kafka import topics
from tailrace.sinks.kafka.settings import KafkaSink
from tailrace.sinks.kafka.topics import Topics

if TYPE_CHECKING:
    from collections.abc import Sequence


class FakeCluster:
    """Topics with their numbers of partitions; notes what is looked up and created."""

    def __init__(self, **existing: int) -> None:
        self.existing: dict[str, int] = existing
        self.lookups: list[str] = []
        self.created: list[str] = []
        self.sizes: dict[str, int] = {}
        """Their limits, if they may be described."""

    def __call__(self, _settings: KafkaSink, *, name: str) -> FakeCluster:
        assert name == "pipeline"
        return self

    def partitions(self, names: Sequence[str]) -> dict[str, int | None]:
        self.lookups += names
        return {topic: self.existing.get(topic) for topic in names}

    def create(self, names: Sequence[str], partitions: int) -> None:
        self.created += names
        self.existing |= dict.fromkeys(names, partitions)

    def limits(self, names: Sequence[str]) -> dict[str, int]:
        return {topic: self.sizes.get(topic, topics.NO_LIMIT) for topic in names}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    fake = FakeCluster(orders=3)
    monkeypatch.setattr(topics, "Cluster", fake)
    return fake


def topics_of(**keys: Any) -> Topics:
    return Topics(KafkaSink.model_validate({"type": "kafka", **keys}), name="pipeline")


def column(*destinations: bytes) -> pa.Array:
    return pa.array(destinations, pa.binary())


def test_each_topic_is_looked_up_once(cluster: FakeCluster) -> None:
    known = topics_of()
    assert known.invalid(column(b"orders", b"orders/1", b"orders")) == {}
    assert known.invalid(column(b"orders", b"orders/1")) == {}
    assert cluster.lookups == ["orders"]


def test_a_missing_topic_is_created(cluster: FakeCluster) -> None:
    assert topics_of(partitions=4).invalid(column(b"orders", b"users")) == {}
    assert cluster.created == ["users"]
    assert cluster.existing["users"] == 4


def test_without_create_the_rows_of_missing_topics_are_named(cluster: FakeCluster) -> None:
    known = topics_of(create=False)
    invalid = known.invalid(column(b"orders", b"users", b"carts", b"users"))
    assert list(invalid) == [1, 2, 3]
    assert isinstance(invalid[1], SinkRefusedError)
    assert str(invalid[1]) == "there is no topic users"
    assert cluster.created == []
    cluster.existing["users"] = 1
    assert list(known.invalid(column(b"users", b"carts"))) == [1]


def test_an_invalid_name_is_named_and_never_looked_up(cluster: FakeCluster) -> None:
    invalid = topics_of().invalid(column(b"orders", b"a topic!"))
    assert list(invalid) == [1]
    assert isinstance(invalid[1], PoisonedError)
    assert str(invalid[1]) == "destination 'a topic!' is not a valid topic name"
    assert cluster.lookups == ["orders"]


def test_limits_are_kept_until_they_decide(cluster: FakeCluster) -> None:
    cluster.sizes["orders"] = 5000
    known, rows = topics_of(), column(b"orders/1", b"users", b"orders", b"a topic!")
    known.invalid(rows)
    no_limit = topics.NO_LIMIT
    assert known.limits(rows).tolist() == [5000, no_limit, 5000, no_limit]
    cluster.sizes["orders"] = 6000
    assert known.limits(rows)[0] == 5000
    assert not known.take_less()
    cluster.sizes["orders"] = 7000
    assert known.present_limit(b"orders/1") == 7000
    cluster.sizes["users"] = 1000
    assert known.take_less()
    assert not known.take_less()
    assert known.limits(rows).tolist() == [7000, 1000, 7000, no_limit]
