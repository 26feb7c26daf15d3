"""Replicas against the log alone: what followers cost, how far they lag, how fast they catch up.

Leader and followers are processes on this machine, with sockets on loopback and folders on one
disk. A run counts as finished when the last follower has fsynced what the leader has.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import threading
import time
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import psycopg
import yaml

from benchmarks.report import Report
from benchmarks.source import Source, Streaming, log_folder, source
from tailrace.log.appender import Appender, Layout
from tailrace.log.format import mark as marks
from tailrace.log.format.entry import Entry, Kind, pack
from tailrace.log.format.layout import Identity
from tailrace.log.lease import Lease
from tailrace.log.store import LocalStore
from tailrace.position import Lsn, Position

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tailrace.log.format.mark import Mark

_ROWS, _TRANSACTIONS = 100, 20_000
_REPETITIONS = 5
_RATE, _EVERY_S = 20_000, 0.005
_LAG_S = 30
_COMMITS, _COMMIT_EVERY_S = 150, 0.17
_CATCH_UP_BYTES = 2 << 30
_ENTRY_BYTES = 1 << 20
_QUICK = 20
_WAIT_S = 600
_ROW = (
    "INSERT INTO item SELECT %s + g, 'name', 'user@example.com', 1, 1.25, true, "
    '\'{"a": 1, "b": "text"}\', now() FROM generate_series(1, %s) g'
)


def run(quick: bool) -> Report:
    """`ratio_1`, `ratio_2`, `leader_ratio`, `lag_p99_ms`, `sync_added_p50_ms`, `catchup_ratio`."""
    report = Report("replica: the log on more than one machine")
    _throughput(report, quick)
    with source() as made:
        _lag(made, report, quick)
    with source() as made:
        _sync(made, report, quick)
    _catch_up(report, quick)
    return report


class Node:
    """A process of Tailrace that is killed at the end."""

    def __init__(self, command: str, settings: Path) -> None:
        words = [sys.executable, "-m", "tailrace.cli", command, "-c", str(settings)]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


class Cluster:
    """A leader's folder and the followers of its log."""

    def __init__(self, folder: Path, followers: int, **replication: Any) -> None:
        self.folder = folder
        self.store = LocalStore(folder / "log", create=True)
        ports = [_free_port() for _ in range(followers)]
        self.replication = {
            "followers": [f"127.0.0.1:{port}" for port in ports],
            "reconnect_s": 0.2,
            **replication,
        }
        self.copies = [LocalStore(folder / f"copy-{port}" / "log") for port in ports]
        self._nodes: list[Node] = []
        for port in ports:
            settings = folder / f"copy-{port}" / "tailrace.yml"
            settings.parent.mkdir()
            content = {
                "log": {"path": "log"},
                "data": "data",
                "http": {"port": 0},
                "replication": {"listen": f"127.0.0.1:{port}"},
            }
            settings.write_text(yaml.safe_dump(content))
            self._nodes.append(Node("follow", settings))

    def settings(self, **sections: Any) -> Path:
        """The leader's settings file."""
        file = self.folder / "tailrace.yml"
        content = {"log": {"path": "log"}, "replication": self.replication, **sections}
        file.write_text(yaml.safe_dump(content))
        return file

    def lead(self) -> None:
        """Start the sender, and wait until every follower has what is there."""
        self._nodes.append(Node("replicate", self.folder / "tailrace.yml"))
        self.wait()

    def wait(self) -> float:
        """Wait until every follower has what the leader has; the time of the last one."""
        deadline = time.perf_counter() + _WAIT_S
        while any(marks.peek(copy) != marks.peek(self.store) for copy in self.copies):
            if time.perf_counter() > deadline:
                raise RuntimeError("a follower does not arrive")
            time.sleep(0.002)
        return time.perf_counter()

    def end(self) -> None:
        for node in self._nodes:
            node.end()


@contextlib.contextmanager
def _cluster(followers: int, **replication: Any) -> Iterator[Cluster]:
    with log_folder() as folder:
        made = Cluster(folder, followers, **replication)
        try:
            yield made
        finally:
            made.end()


def _throughput(report: Report, quick: bool) -> None:
    transactions = _TRANSACTIONS // _QUICK if quick else _TRANSACTIONS
    total = transactions * _ROWS
    alone: list[float] = []
    others: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
    with source() as made:
        made.create_slot("base")
        made.connection.execute("CALL fill(%s, %s)", (transactions, _ROWS))
        made.connection.execute("CHECKPOINT")
        until = made.end()
        for number in range(2 if quick else _REPETITIONS):
            order = (0, 1, 2) if number % 2 else (2, 1, 0)
            for followers in order:
                seconds = _replicated(made, until, followers)
                if followers:
                    others[followers].append(seconds)
                else:
                    alone.append(seconds[0])
        made.drop_slot("base")
    report.add("capture alone", f"{total / median(alone):,.0f} rows/s")
    for followers, runs in others.items():
        pairs = list(zip(alone, runs, strict=True))
        ratio = median(theirs / both for theirs, (_, both) in pairs)
        report.figure(f"ratio_{followers}", ratio, "replicated ÷ capture alone, rows/s")
        if followers == 1:
            own = median(theirs / mine for theirs, (mine, _) in pairs)
            report.figure("leader_ratio", own, "capture with an async follower ÷ without")


def _replicated(made: Source, until: Lsn, followers: int) -> tuple[float, float]:
    """Seconds until capture has everything, and until all followers have it."""
    with made.copied_slot("base") as slot, _cluster(followers) as cluster:
        file = cluster.settings(source={"dsn": made.dsn, "slot": slot})
        # The log exists before the clock runs, so that the followers are connected.
        _capture(file, made.confirmed(slot)).finish()
        if followers:
            cluster.lead()
        streaming = _capture(file, until)
        ended = streaming.finish()
        began = time.perf_counter() - ended.seconds
        return ended.seconds, cluster.wait() - began


def _capture(file: Path, until: Lsn | None = None) -> Streaming:
    command = [sys.executable, "-m", "tailrace.cli", "capture", "-c", str(file)]
    if until is not None:
        command += ["--until", str(until)]
    return Streaming(command, "capture.streaming")


def _lag(made: Source, report: Report, quick: bool) -> None:
    """From the leader's mark to the follower's, at a steady rate of commits."""
    made.create_slot("lag")
    with _cluster(1) as cluster:
        file = cluster.settings(source={"dsn": made.dsn, "slot": "lag"})
        _capture(file, made.confirmed("lag")).finish()
        cluster.lead()
        streaming = _capture(file)
        streaming.wait_until_streaming()
        stop = threading.Event()
        seen: list[list[tuple[tuple[int, int], float]]] = [[], []]
        watchers = [
            threading.Thread(target=_note_marks, args=(store, found, stop), daemon=True)
            for store, found in zip((cluster.store, cluster.copies[0]), seen, strict=True)
        ]
        for watcher in watchers:
            watcher.start()
        rate = _write(made, _LAG_S / _QUICK if quick else _LAG_S)
        cluster.wait()
        stop.set()
        for watcher in watchers:
            watcher.join()
        streaming.process.terminate()
        streaming.process.wait()
    lags = _lags(*seen)
    report.add("changes/s written", f"{rate:,.0f}")
    report.figure("lag_p50_ms", float(np.percentile(lags, 50)), "leader's fsync → follower's")
    report.figure("lag_p99_ms", float(np.percentile(lags, 99)))


def _note_marks(
    store: LocalStore, found: list[tuple[tuple[int, int], float]], stop: threading.Event
) -> None:
    watch = store.watch(marks.NAME)
    last: Mark | None = None
    while not stop.is_set():
        mark = marks.peek(store)
        if mark is not None and mark != last:
            found.append((mark.place, time.perf_counter()))
            last = mark
        watch.wait(0.05)


def _lags(
    leader: list[tuple[tuple[int, int], float]], follower: list[tuple[tuple[int, int], float]]
) -> list[float]:
    """For each mark of the leader, how long the follower took to have it; milliseconds."""
    lags, at = [], 0
    for place, written in leader:
        while at < len(follower) and follower[at][0] < place:
            at += 1
        if at == len(follower):
            break
        lags.append(max(follower[at][1] - written, 0) * 1000)
    return lags


def _write(made: Source, seconds: float) -> float:
    """Commit at the rate; what it was."""
    rows = round(_RATE * _EVERY_S)
    count, began = 0, time.perf_counter()
    with psycopg.connect(made.dsn, autocommit=True) as connection:
        while (elapsed := time.perf_counter() - began) < seconds:
            due = int(elapsed / _EVERY_S)
            if count * 1.0 > due * rows:
                time.sleep(_EVERY_S / 4)
                continue
            connection.execute(_ROW, (count, rows))
            count += rows
    return count / (time.perf_counter() - began)


def _sync(made: Source, report: Report, quick: bool) -> None:
    """From a commit to its acknowledgement by the slot, with and without waiting for a follower."""
    found: dict[str, float] = {}
    commits = _COMMITS // _QUICK if quick else _COMMITS
    for number, mode in enumerate(("async", "sync")):
        slot = f"slot_{mode}"
        made.create_slot(slot)
        with _cluster(1, mode=mode) as cluster:
            file = cluster.settings(source={"dsn": made.dsn, "slot": slot})
            _capture(file, made.confirmed(slot)).finish()
            cluster.lead()
            streaming = _capture(file)
            streaming.wait_until_streaming()
            time.sleep(1)
            times = _acknowledgements(made, slot, range(number * commits, (number + 1) * commits))
            streaming.process.terminate()
            streaming.process.wait()
        made.drop_slot(slot)
        found[mode] = median(times) * 1000
        report.add(f"commit → acknowledged, {mode}", f"{found[mode]:.1f} ms", "p50")
    report.figure("sync_added_p50_ms", found["sync"] - found["async"], "what mode sync adds")


def _acknowledgements(made: Source, slot: str, ids: range) -> list[float]:
    statement = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s"
    times = []
    with psycopg.connect(made.dsn, autocommit=True) as connection:
        for number in ids:
            time.sleep(_COMMIT_EVERY_S)
            connection.execute(_ROW, (number + 1_000_000_000, 1))
            committed = time.perf_counter()
            row = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
            end = Lsn.parse(str(row and row[0]))
            while True:
                row = connection.execute(statement, (slot,)).fetchone()
                # The commit record ends before the insert position, by less than its own size.
                if row is not None and Lsn.parse(str(row[0])) >= end - 64:
                    break
                time.sleep(0.0005)
            times.append(time.perf_counter() - committed)
    return times


def _catch_up(report: Report, quick: bool) -> None:
    """A new follower against `cp` of the same files, in turn."""
    size = _CATCH_UP_BYTES // _QUICK if quick else _CATCH_UP_BYTES
    ratios, synced = [], []
    with log_folder() as folder:
        store = _long_log(folder / "log", size)
        for number in range(1 if quick else 3):
            copied, durable = _cp(folder, number)
            ours = _followed(folder, store)
            ratios.append(copied / ours)
            synced.append(durable / ours)
            report.add(
                "catch-up", f"{size / ours / 1e6:,.0f} MB/s", f"cp {size / copied / 1e6:,.0f}"
            )
    report.figure("catchup_ratio", median(ratios), "cp of the files ÷ catch-up with fsync")
    report.figure("catchup_synced_ratio", median(synced), "cp and sync of them ÷ catch-up")


def _cp(folder: Path, number: int) -> tuple[float, float]:
    """Seconds of `cp`, and of `cp` with a sync of the copy."""
    target = folder / f"cp-{number}"
    began = time.perf_counter()
    subprocess.run(["cp", "-r", str(folder / "log"), str(target)], check=True)
    copied = time.perf_counter() - began
    subprocess.run(["sync", *map(str, target.iterdir())], check=True)
    durable = time.perf_counter() - began
    shutil.rmtree(target)
    return copied, durable


def _followed(folder: Path, store: LocalStore) -> float:
    """Seconds from the start of the sender to the follower's mark at the end."""
    port = _free_port()
    copy = folder / f"copy-{port}"
    copy.mkdir()
    content = {"log": {"path": "log"}, "replication": {"listen": f"127.0.0.1:{port}"}}
    (copy / "tailrace.yml").write_text(yaml.safe_dump(content))
    leader = folder / "tailrace.yml"
    followers = {"followers": [f"127.0.0.1:{port}"], "reconnect_s": 0.1}
    leader.write_text(yaml.safe_dump({"log": {"path": "log"}, "replication": followers}))
    nodes = [Node("follow", copy / "tailrace.yml")]
    copied = LocalStore(copy / "log")
    try:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.02)
        nodes.append(Node("replicate", leader))
        while not (copy / "log").exists() or not list((copy / "log").glob("*.seg")):
            time.sleep(0.002)
        began = time.perf_counter()
        end = marks.peek(store)
        while marks.peek(copied) != end:
            time.sleep(0.002)
        return time.perf_counter() - began
    finally:
        for node in nodes:
            node.end()
        shutil.rmtree(copy)


def _long_log(folder: Path, size: int) -> LocalStore:
    """A log of so many bytes, whose entries hold random messages."""
    store = LocalStore(folder, create=True)
    identity = Identity(system_identifier="1", timeline=1, database="d", slot="s", publication="p")
    lease = Lease.acquire(store)
    appender = Appender.create(
        store, lease, Layout(), identity=identity, start_lsn=Lsn(1000), log_id="bench"
    )
    content = np.random.default_rng(1).bytes(_ENTRY_BYTES)
    offsets, body = pack([content[:1000], content[1000:]])
    for number in range(1, size // _ENTRY_BYTES):
        lsn = Lsn(1000 + number * 100)
        appender.append(
            Entry(
                kind=Kind.TRANSACTIONS, first=Position(lsn, 0), last=Position(lsn, 0),
                end_lsn=Lsn(lsn + 50), first_time=0, last_time=0, transactions=1, changes=1,
                offsets=offsets, body=body,
            )
        )  # fmt: skip
    appender.close()
    lease.release()
    return store
