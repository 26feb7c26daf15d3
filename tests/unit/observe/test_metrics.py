from __future__ import annotations

import numpy as np
import pytest

from tailrace.observe.copies import SnapshotFigures
from tailrace.observe.figures import PipelineFigures, SystemFigures
from tailrace.observe.histogram import BOUNDS_S, Histogram
from tailrace.observe.kept import SlotFigures
from tailrace.observe.metrics import exposition, families


def test_an_unknown_figure_has_no_sample() -> None:
    [kept, *_] = [
        family for family in families(SlotFigures, [SlotFigures()])
        if family.name == "bridge_wal_lag_bytes"
    ]  # fmt: skip
    assert kept.samples == []


def test_of_equal_labels_the_last_item_counts() -> None:
    snapshots = [
        SnapshotFigures(id="1", table="public.t", state="failed", rows=1),
        SnapshotFigures(id="2", table="public.t", state="running", rows=2),
        SnapshotFigures(id="3", table="public.u", state="complete", rows=3),
    ]
    found = {
        (sample.name, sample.labels["table"]): sample.value
        for family in families(SnapshotFigures, snapshots)
        for sample in family.samples
    }
    assert found["tailrace_snapshot_rows", "public.t"] == 2
    assert found["tailrace_snapshot_failed", "public.t"] == 0
    assert found["tailrace_snapshot_running", "public.t"] == 1
    assert found["tailrace_snapshot_rows", "public.u"] == 3


def test_a_family_without_items_is_still_described() -> None:
    names = {family.name for family in families(PipelineFigures, [])}
    assert "tailrace_events" in names


def test_a_histogram_has_cumulative_buckets() -> None:
    """GIVEN latencies of 1 ms, 30 ms and 2 days THEN each bucket counts all up to its bound."""
    ages_us = np.array([1_000, 30_000, 172_800_000_000])
    pipeline = PipelineFigures(name="bridge", delivery_latency=Histogram.of(ages_us))
    [family] = [
        each for each in families(PipelineFigures, [pipeline])
        if each.name == "tailrace_delivery_latency_seconds"
    ]  # fmt: skip
    found = {
        (sample.name.removeprefix(family.name), sample.labels.get("le")): sample.value
        for sample in family.samples
    }
    expected = {bound: (ages_us <= bound * 1e6).sum() for bound in BOUNDS_S}
    assert expected[0.001] == 1
    assert expected[0.05] == 2
    assert expected[7200.0] == 2
    for bound, count in expected.items():
        assert found["_bucket", str(bound)] == count
    assert found["_bucket", "+Inf"] == found["_count", None] == 3
    assert found["_sum", None] == pytest.approx(172_800.031)


def test_the_figures_are_read_once_per_scrape() -> None:
    reads = []

    def read() -> SystemFigures:
        reads.append(1)
        return SystemFigures()

    body, kind = exposition(read)
    assert kind.startswith("text/plain")
    assert b"# TYPE bridge_uptime_seconds gauge" in body
    assert len(reads) == 1


def test_openmetrics_on_request() -> None:
    body, kind = exposition(SystemFigures, "application/openmetrics-text")
    assert kind.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
