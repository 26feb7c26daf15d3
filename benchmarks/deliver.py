"""From the log through Spark into JetStream, against `pg_recvlogical` over TCP.

The backlog: a log of a million changes, delivered by `tailrace pipelines` into a file-backed stream
with message ids on. JetStream's own timestamps of the first and the last message give the time. The
reference reads the same changes from the server and throws them away. Runs come in pairs.

Live: PostgreSQL, capture, Spark and JetStream share the machine while rows are written at a rate;
the highest rate held without growing lag for a minute is the figure.

Catch-up: capture and pipelines run, are warm and then paused (SIGSTOP) while changes are written,
which the reference reads meanwhile. The time is from SIGCONT to the last message in the stream.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from datetime import datetime
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import psycopg

from benchmarks.delivery import Pipelines, memory_mb, paused, running, stream_state, to_nats
from benchmarks.report import Report
from benchmarks.source import Source, capture, log_folder, recvlogical, source
from tailrace.testing import EmbeddedNats

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from multiprocessing.synchronize import Event
    from pathlib import Path

    from benchmarks.source import Streaming
    from tailrace.position import Lsn

    Beside = Callable[[Path], AbstractContextManager[object]]

_ROWS = 100
_TRANSACTIONS = 10_000
_MISSED_TRANSACTIONS = 3_000
_REPETITIONS = 3
_PROBE_S, _HELD_S = 20, 60
_TICK_S = 0.02
WRITE = """
INSERT INTO item
SELECT %s + g, 'name ' || g, 'user' || g || '@example.com', g, g * 1.25,
       mod(g, 2) = 0, jsonb_build_object('a', g, 'b', 'text'), now()
FROM generate_series(1, %s) g
"""
_WALSENDER = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = 'catchup'"
_BRIDGE = {name: {"shape": "bridge", "encoding": name} for name in ("json", "msgpack")}


def run(quick: bool) -> Report:
    """The figures of all cases.

    Backlog: `ratio_json`, `ratio_msgpack`. Guard: `guard_ratio`. Live: `live_events_per_s`,
    `rss_total_mb`. Catch-up: `catchup_events_per_s`, `ratio_catchup`.
    """
    report = Report("deliver: events/s from the log through Spark into JetStream")
    for case in CASES.values():
        case(report, quick)
    return report


def run_shape(shape: str, quick: bool) -> Report:
    """`ratio_SHAPE`: the backlog alone, in one shape."""
    report = Report(f"deliver: events/s in shape {shape}")
    _backlog(report, quick, {shape: {"shape": shape}})
    return report


def _backlog(report: Report, quick: bool, forms: dict[str, dict[str, str]] = _BRIDGE) -> None:
    with source() as made, log_folder() as folder:
        _compare(made, folder, report, forms, quick=quick)


def _compare(
    made: Source, folder: Path, report: Report, forms: dict[str, dict[str, str]], *, quick: bool
) -> None:
    until, rows = fill(made, folder, quick=quick)
    rates: dict[str, list[float]] = {name: [] for name in forms}
    ratios: dict[str, list[float]] = {name: [] for name in forms}
    references = []
    for _ in range(1 if quick else _REPETITIONS):
        for name, form in forms.items():
            reference = rows / _reference(made, until)
            rate = deliver_backlog(folder, form, rows)
            references.append(reference)
            rates[name].append(rate)
            ratios[name].append(rate / reference)
    report.add("pg_recvlogical, TCP", f"{median(references):,.0f} rows/s")
    for name, found in rates.items():
        report.add(f"backlog, {name}", f"{median(found):,.0f} events/s")
        report.figure(f"ratio_{name}", median(ratios[name]), "÷ pg_recvlogical")


def fill(made: Source, folder: Path, *, quick: bool) -> tuple[Lsn, int]:
    """Write a backlog and capture it; where it ends, and its changes."""
    transactions = _TRANSACTIONS // 20 if quick else _TRANSACTIONS
    made.create_slot("base")
    made.connection.execute("CALL fill(%s, %s)", (transactions, _ROWS))
    made.connection.execute("CHECKPOINT")
    until = made.end()
    with made.copied_slot("base") as slot:
        capture(made, slot, folder, until).finish()
    return until, transactions * _ROWS


def _guard(report: Report, quick: bool) -> None:
    """The backlog of a pipeline that parks messages, against one that stops at the first."""
    park: dict[str, list[float]] = {"key": [], "never": []}
    with source() as made, log_folder() as folder:
        _, rows = fill(made, folder, quick=quick)
        for repetition in range(1 if quick else 2 * _REPETITIONS):
            for choice in sorted(park, reverse=bool(repetition % 2)):
                form = {"shape": "bridge", "encoding": "msgpack", "park": choice}
                park[choice].append(deliver_backlog(folder, form, rows))
    for choice, rates in park.items():
        report.add(f"backlog, park: {choice}", f"{median(rates):,.0f} events/s")
    report.figure("guard_ratio", median(park["key"]) / median(park["never"]))


def _reference(made: Source, until: Lsn) -> float:
    with made.copied_slot("base") as slot:
        return recvlogical(made, slot, until, tcp=True).finish().seconds


def deliver_backlog(
    folder: Path, form: dict[str, str], rows: int, beside: Beside = contextlib.nullcontext
) -> float:
    """Events per second from the log in a folder into JetStream, while `beside` runs in the new
    folder of the pipelines."""
    with log_folder() as place, EmbeddedNats() as server:
        (place / "log").symlink_to(folder / "log")
        with beside(place):
            pipelines = Pipelines(place, bench=to_nats(server.url, **form))
            pipelines.wait(lambda: pipelines.events("bench") >= rows)
            state = stream_state(server.url)
            pipelines.stop()
    if state["messages"] != rows:
        raise RuntimeError(f"{rows} changes, {state['messages']} messages")
    return rows / (_seconds(state["last_ts"]) - _seconds(state["first_ts"]))


def _seconds(text: str) -> float:
    """RFC 3339 with up to nine digits; Python reads six."""
    head, _, rest = text.partition(".")
    digits = rest.rstrip("Z")
    return datetime.fromisoformat(f"{head}+00:00").timestamp() + float(f"0.{digits or 0}")


def _live(report: Report, quick: bool) -> None:
    with (
        source() as made,
        log_folder() as folder,
        EmbeddedNats() as server,
        running(made, "live", folder, to_nats(server.url, encoding="msgpack")) as system,
    ):
        live = _Live(made, server.url, *system)
        live.hold(10_000, 5 if quick else 20)
        rate = 20_000
        while live.hold(rate, 5 if quick else _PROBE_S) and not quick:
            rate = int(rate * 1.2)
        while not quick:
            rate = int(rate / 1.1)
            if live.hold(rate, _HELD_S):
                break
        memory = live.memory
    report.figure("live_events_per_s", rate, f"held for {_HELD_S} s")
    for name, size in memory.items():
        report.add(f"memory of {name}", f"{size:,.0f} MB")
    report.figure("rss_total_mb", sum(memory.values()), "capture, Spark and its workers")


def _catch_up(report: Report, quick: bool) -> None:
    transactions = _MISSED_TRANSACTIONS // 10 if quick else _MISSED_TRANSACTIONS
    with (
        source() as made,
        log_folder() as folder,
        EmbeddedNats() as server,
        running(made, "catchup", folder, to_nats(server.url, encoding="json")) as system,
    ):
        _Live(made, server.url, *system).hold(10_000, 5 if quick else 20)
        taken = [
            _pause(made, server.url, *system, transactions)
            for _ in range(1 if quick else _REPETITIONS)
        ]
    reference, rate = (median(column) for column in zip(*taken, strict=True))
    ratio = median(ours / theirs for theirs, ours in taken)
    report.add("pg_recvlogical, TCP", f"{reference:,.0f} rows/s")
    report.figure("catchup_events_per_s", rate, f"after {transactions * _ROWS:,} missed changes")
    report.figure("ratio_catchup", ratio, "÷ pg_recvlogical")


def _pause(
    made: Source, url: str, pipelines: Pipelines, child: Streaming, transactions: int
) -> tuple[float, float]:
    """Changes a second of what was written during a pause: the reference, and Tailrace."""
    rows = transactions * _ROWS
    total = stream_state(url)["messages"] + rows
    walsender = made.value(_WALSENDER)
    made.create_slot("base")
    with paused(child.process.pid, pipelines.process.pid):
        last = made.value("SELECT max(id) FROM item")
        made.connection.execute("CALL fill(%s, %s, %s)", (transactions, _ROWS, last))
        reference = rows / _reference(made, made.end())
        resumed = time.time()
    # Not the stream: to ask it ten times a second takes CPU from what is measured.
    pipelines.wait(lambda: pipelines.events("bench") >= total)
    state = stream_state(url)
    made.drop_slot("base")
    if made.value(_WALSENDER) != walsender:
        raise RuntimeError("capture had to connect again: the pause exceeded wal_sender_timeout")
    if state["messages"] != total:
        raise RuntimeError(f"{total} changes, {state['messages']} messages")
    return reference, rows / (_seconds(state["last_ts"]) - resumed)


CASES: dict[str, Callable[[Report, bool], None]] = {
    "backlog": _backlog,
    "guard": _guard,
    "live": _live,
    "catchup": _catch_up,
}


class _Live:
    """Writes at a rate and watches how far JetStream is behind."""

    def __init__(self, made: Source, url: str, pipelines: Pipelines, child: Streaming) -> None:
        self._made = made
        self._url = url
        self._pipelines = pipelines
        self._capture = child
        self._next = 10_000_000
        self.memory: dict[str, float] = {}

    def hold(self, rate: int, seconds: float) -> bool:
        """Whether delivery keeps up with `rate` rows a second: the lag must not grow."""
        stop = multiprocessing.Event()
        written = multiprocessing.Value("q", 0)
        writer = multiprocessing.Process(
            target=_write, args=(self._made.dsn, rate, self._next, written, stop), daemon=True
        )
        before = stream_state(self._url)["messages"]
        writer.start()
        lags, began = [], time.monotonic()
        while time.monotonic() - began < seconds:
            time.sleep(1)
            self._pipelines.check()
            lags.append(written.value - (stream_state(self._url)["messages"] - before))
            self._measure()
        stop.set()
        writer.join(10)
        achieved = written.value / (time.monotonic() - began)
        self._next += written.value
        total = before + written.value
        self._pipelines.wait(lambda: stream_state(self._url)["messages"] >= total)
        later = lags[len(lags) // 3 :]
        slope = float(np.polyfit(np.arange(len(later)), later, 1)[0]) if len(later) > 1 else 0.0
        return achieved > 0.97 * rate and slope < 0.01 * rate and later[-1] < 2 * rate

    def _measure(self) -> None:
        now = memory_mb(self._pipelines.process.pid, self._capture.process.pid)
        if sum(now.values()) > sum(self.memory.values()):
            self.memory = now


def _write(dsn: str, rate: int, start: int, written: object, stop: Event) -> None:
    """Insert `rate` rows a second, a transaction every twenty milliseconds."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        began, done = time.monotonic(), 0
        while not stop.is_set():
            due = int((time.monotonic() - began) * rate) - done
            if due > 0:
                connection.execute(WRITE, (start + done, due))
                done += due
                written.value = done  # type: ignore[attr-defined]
            time.sleep(_TICK_S)
