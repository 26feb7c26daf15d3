"""Three pipelines on one log: what the other two notice when the third one's sink is dead.

First all three deliver, then the third one's server is gone. In both phases the same is measured
of the other two: the delay of a change at a steady rate, and how quickly both have delivered a
burst.
"""

from __future__ import annotations

import time

import numpy as np

from benchmarks.deliver import WRITE
from benchmarks.delivery import Pipelines, stream_state, to_nats
from benchmarks.latency import from_nats, measure
from benchmarks.report import Report
from benchmarks.source import Source, capture, log_folder, source
from tailrace.testing import EmbeddedNats

_RATE = 1_000
_SECONDS, _WARM_S, _BURST = 30, 15, 300_000
_STREAMS = ("FIRST", "SECOND")


def run(quick: bool) -> Report:
    """`p50_ms`, `p99_ms`, `burst_events_per_s`, and the same with `_dead`."""
    report = Report("isolation: two pipelines beside a third one whose sink is dead")
    with (
        source() as made,
        log_folder() as folder,
        EmbeddedNats() as server,
        EmbeddedNats() as doomed,
    ):
        made.create_slot("isolation")
        child = capture(made, "isolation", folder)
        child.wait_until_streaming()
        pipelines = Pipelines(
            folder,
            first=to_nats(server.url, _STREAMS[0], encoding="json"),
            second=to_nats(server.url, _STREAMS[1], encoding="json"),
            third=to_nats(doomed.url, "THIRD", encoding="json"),
        )
        made.connection.execute("CALL fill(10, 10)")
        names = ("first", "second", "third")
        pipelines.wait(lambda: min(map(pipelines.events, names)) >= 100)
        _phase(made, server, pipelines, report, suffix="", quick=quick)
        doomed.kill()
        _phase(made, server, pipelines, report, suffix="_dead", quick=quick)
        pipelines.stop()
        child.process.terminate()
        child.finish()
    return report


def _phase(
    made: Source,
    server: EmbeddedNats,
    pipelines: Pipelines,
    report: Report,
    *,
    suffix: str,
    quick: bool,
) -> None:
    seconds, warm, burst = (3, 3, 10_000) if quick else (_SECONDS, _WARM_S, _BURST)
    delays = [
        measure(made, from_nats(server.url, stream), rate=_RATE, rows=1, seconds=seconds, warm=warm)
        for stream in _STREAMS
    ]
    p50, p99 = np.percentile(np.concatenate(delays), (50, 99))
    report.figure(f"p50{suffix}_ms", float(p50), f"at {_RATE:,} changes/s")
    report.figure(f"p99{suffix}_ms", float(p99))
    rate = burst / _burst(made, server, pipelines, burst)
    report.figure(f"burst{suffix}_events_per_s", rate, "each, both deliver it at once")


def _burst(made: Source, server: EmbeddedNats, pipelines: Pipelines, rows: int) -> float:
    """Seconds from the commit of so many rows until both streams have them."""
    due = {stream: stream_state(server.url, stream)["messages"] + rows for stream in _STREAMS}
    first = made.connection.execute("SELECT coalesce(max(id), 0) FROM item").fetchone()
    assert first is not None
    made.connection.execute(WRITE, (int(first[0]), rows))
    began = time.monotonic()
    pipelines.wait(
        lambda: all(
            stream_state(server.url, stream)["messages"] >= most for stream, most in due.items()
        )
    )
    return time.monotonic() - began
