"""The status of the broker: metrics for Prometheus, and the document of `/status`."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector as Base

from tailrace import __version__
from tailrace.broker.api import API_VERSIONS, APIS
from tailrace.broker.tally import BOUNDS_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import Metric

    from tailrace.broker.broker import Broker
    from tailrace.broker.server import Server

_PREFIX = "tailrace_broker_"
_NAMES = {key: api.name for key, api in APIS.items()} | {API_VERSIONS: "ApiVersions"}


def document(broker: Broker, server: Server) -> dict[str, Any]:
    """The document of `/status`."""
    return {
        "version": __version__,
        "status": "connected" if broker.connected else "waiting for PostgreSQL",
        "connections": server.connections,
        "topics": len(broker.catalog.topics),
        "partitions": sum(topic.partitions for topic in broker.catalog.topics.values()),
        "users": len(broker.access.users),
        "groups": {
            group.id: {"state": group.state.value, "members": len(group.members)}
            for group in broker.groups.all()
        },
        "request_memory_bytes": broker.memory_used,
        "request_memory_waiting": broker.memory_waiting,
        "produced_records": broker.tally.produced_records,
        "produced_bytes": broker.tally.produced_bytes,
        "fetched_bytes": broker.tally.fetched_bytes,
        "logins": dict(broker.tally.logins),
        "refused": dict(broker.tally.refused),
    }


class Collector(Base):
    """Collects the metrics at every scrape."""

    def __init__(self, broker: Broker, server: Server) -> None:
        self._broker, self._server = broker, server

    def collect(self) -> Iterator[Metric]:
        """Every metric of the broker."""
        broker, tally = self._broker, self._broker.tally
        info = GaugeMetricFamily(
            "tailrace_info", "The running release of Tailrace.", labels=["version"]
        )
        info.add_metric([__version__], 1)
        yield info
        gauges = {
            "up": (
                "1 while PostgreSQL is reachable and this broker holds its lock.",
                int(broker.connected),
            ),
            "connections": ("Connected clients.", self._server.connections),
            "topics": ("Topics.", len(broker.catalog.topics)),
            "partitions": (
                "Partitions of all topics.",
                sum(topic.partitions for topic in broker.catalog.topics.values()),
            ),
            "users": ("Users that can log in.", len(broker.access.users)),
            "groups": ("Consumer groups that have members.", sum(1 for _ in broker.groups.all())),
            "group_members": (
                "Members of all consumer groups.",
                sum(len(group.members) for group in broker.groups.all()),
            ),
            "request_memory_bytes": (
                "Memory of requests and responses in progress.",
                broker.memory_used,
            ),
            "request_memory_waiting": (
                "Requests that wait for memory.",
                broker.memory_waiting,
            ),
            "group_memory_bytes": ("Memory of consumer groups.", broker.memory.kept),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(_PREFIX + name, text, value)
        counters = {
            "batches": ("Committed record batches.", tally.batches),
            "produced_records": ("Committed records.", tally.produced_records),
            "produced_bytes": (
                "Bytes of committed record batches, decompressed.",
                tally.produced_bytes,
            ),
            "fetched_bytes": ("Bytes of record batches sent to consumers.", tally.fetched_bytes),
        }
        for name, (text, count) in counters.items():
            yield CounterMetricFamily(_PREFIX + name, text, count)
        yield _labelled("logins", "Login attempts, by result.", "result", tally.logins)
        yield _labelled(
            "refused", "Connections that the broker closed, by reason.", "reason", tally.refused
        )
        yield from self._requests()

    def _requests(self) -> Iterator[Metric]:
        timings = self._broker.tally.requests
        counts = {_NAMES[api]: sum(timing.buckets) for api, timing in timings.items()}
        yield _labelled("requests", "Answered requests, by API.", "api", counts)
        seconds = HistogramMetricFamily(
            _PREFIX + "request_seconds",
            "Time from a request to its response, by API.",
            labels=["api"],
        )
        bounds = [*map(str, BOUNDS_S), "+Inf"]
        for api, timing in timings.items():
            buckets = list(zip(bounds, accumulate(timing.buckets), strict=True))
            seconds.add_metric([_NAMES[api]], buckets, timing.seconds)
        yield seconds


def _labelled(name: str, text: str, label: str, counts: dict[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(_PREFIX + name, text, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family
