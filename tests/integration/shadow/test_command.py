"""`tailrace shadow` with a topic that Kafka refuses: what an operator sees, and how it resumes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tailrace.testing.process import free_port
from tests import http
from tests.command import Service, run
from tests.integration.shadow.bench import Bench
from tests.waiting import LONG_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


class Shadowing(Service):
    """`tailrace shadow` as a process, and its endpoints."""

    def __init__(self, bench: Bench, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        slot = bench.database.name[-50:]
        self.variables = {"TAILRACE_DSN": bench.database.dsn}
        super().__init__(
            *("shadow", "--to", bench.bootstrap, "--replicas", 1, "--port", port),
            *("--slot", f"{slot}_s", "--publication", "shadowed", "--data", "data"),
            folder=folder,
            env=self.variables,
        )

    def get(self, path: str) -> httpx.Response | None:
        try:
            return http.get(self.url + path, timeout=LONG_S)
        except httpx.TransportError:
            return None

    def refused(self) -> list[dict[str, Any]]:
        answer = self.get("/status")
        if answer is None or not answer.is_success:
            return []
        found: list[dict[str, Any]] = answer.json()["pipelines"]["shadow"]["refused"]
        return found

    def delivers(self) -> bool:
        answer = self.get("/metrics")
        return answer is not None and 'tailrace_pipeline_up{pipeline="shadow"} 1' in answer.text


@pytest.fixture
def shadow(bench: Bench, tmp_path: Path) -> Iterator[Shadowing]:
    with Shadowing(bench, tmp_path) as service:
        yield service


def test_a_refused_topic_is_named_and_resumes(bench: Bench, shadow: Shadowing) -> None:
    """GIVEN a topic with more partitions in Kafka WHEN the shadow runs THEN the other topic is
    copied, and /status, /metrics and /ready name the refused one, also after a restart; WHEN the
    partitions are equal and the user asks for it THEN it is complete."""
    other = Bench(bench.database, bench.bootstrap, f"{bench.topic}-other")
    bench.create_topic()
    other.create_topic()
    bench.create_kafka_topic(partitions=2)
    bench.produce(5)
    other.produce(5)
    shadow.start()
    for _ in range(2):
        shadow.wait_until(shadow.refused, "the topic is refused")
        [refused] = wait_for(shadow.refused, "the topic is refused")
        assert (refused["destination"], refused["code"]) == (bench.topic, "SINK_REFUSED")
        assert "2 partitions in Kafka and 1 in the broker" in refused["reason"]
        metrics = shadow.get("/metrics")
        assert metrics is not None
        labels = f'code="SINK_REFUSED",destination="{bench.topic}",pipeline="shadow"'
        assert labels in ",".join(sorted(sample_labels(metrics.text)))
        ready = shadow.get("/ready")
        assert ready is not None
        assert ready.status_code == 503
        assert any(bench.topic in problem for problem in ready.json()["problems"])
        assert shadow.delivers()
        other.produce(5)
        shadow.wait_until(
            lambda: other.kafka_records() == other.broker_records(), "the other topic is copied"
        )
        assert shadow.stop(LONG_S) == 0, shadow.output[-3000:]
        shadow.start()
    assert "shadow.topic_refused" in shadow.output

    bench.database.query(
        f"WITH grown AS (UPDATE kafka.topics SET partitions = 2 WHERE name = '{bench.topic}' "
        "RETURNING id) INSERT INTO kafka.partitions SELECT id, 1 FROM grown RETURNING 1"
    )
    on = run("shadow", "on", bench.topic, env=shadow.variables)
    assert on.returncode == 0, on.stderr
    shadow.wait_until(
        lambda: bench.kafka_records() == bench.broker_records(), "the topic is copied"
    )
    shadow.wait_until(lambda: shadow.delivers() and not shadow.refused(), "it is not refused")
    assert shadow.stop(LONG_S) == 0, shadow.output[-3000:]


def sample_labels(text: str) -> list[str]:
    """The labels of the samples of refused topics."""
    [line] = [each for each in text.splitlines() if each.startswith("tailrace_refused_dest")]
    return line.split("{")[1].split("}")[0].split(",")
