"""One key whose messages always fail: what the other keys notice.

A pipeline delivers to webhooks while rows are updated at a steady rate. The receiver, a process of
its own, takes the time of each message from the commit to its arrival. Runs in which all messages
are accepted take turns with runs in which those of one key are answered with 503.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from datetime import datetime
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import orjson
import psycopg

from benchmarks.delivery import running
from benchmarks.report import Report
from benchmarks.source import log_folder, source
from tailrace.testing import HttpReceiver, HttpResponse

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from tailrace.testing import HttpRequest

_KEYS, _FAILING = 100, 1
_RATE = 300
_SECONDS, _WARM_S, _QUICK_S = 30, 10, 3
_PAIRS = 2
_UPDATE = "UPDATE item SET changed_at = clock_timestamp() WHERE id = %s"
_RETRY = {"attempts": 5, "first_s": 0.1, "max_s": 1}


def run(quick: bool) -> Report:
    """`blocked_key_p99_ratio`: the p99 of other keys, with a key that fails ÷ without."""
    report = Report(f"blocked: {_RATE} changes/s of {_KEYS} keys, of which one fails")
    found: dict[bool, list[float]] = {False: [], True: []}
    port, far = multiprocessing.Pipe()
    server = multiprocessing.Process(target=_serve, args=(far,), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{port.recv()}"
    sink = {"type": "http", "url": url, "allow_private": True}
    pipeline = {"shape": "plain", "encoding": "json", "retry": _RETRY, "sink": sink}
    with (
        source() as made,
        log_folder() as folder,
        running(made, "blocked", folder, pipeline),
    ):
        _update(made.dsn, 1 if quick else _WARM_S)
        for pair in range(1 if quick else _PAIRS):
            # What was parked holds back its key for good, so the failing run is the last of a pair,
            # and each pair has another key.
            for fails in (False, True):
                port.send(_FAILING + pair if fails else None)
                port.recv()
                _update(made.dsn, _QUICK_S if quick else _SECONDS)
                time.sleep(3)
                port.send("take")
                delays = np.array(port.recv())
                found[fails].append(float(np.percentile(delays, 99)))
                what = "one key fails" if fails else "all accepted"
                report.add(what, f"p50 {np.median(delays):.1f} ms", f"{len(delays):,} messages")
    server.terminate()
    report.figure("blocked_p99_before_ms", median(found[False]))
    report.figure("blocked_p99_ms", median(found[True]))
    ratios = [failing / before for before, failing in zip(*found.values(), strict=True)]
    report.figure("blocked_key_p99_ratio", median(ratios))
    return report


def _update(dsn: str, seconds: float) -> None:
    """Update rows at a steady rate; lost time is caught up."""
    rng = random.Random(1)
    with psycopg.connect(dsn, autocommit=True) as connection:
        began, done = time.perf_counter(), 0
        while (now := time.perf_counter() - began) < seconds:
            if done > now * _RATE:
                time.sleep(done / _RATE - now)
            connection.execute(_UPDATE, [rng.randint(1, _KEYS)])
            done += 1
    if done < 0.97 * _RATE * seconds:
        raise RuntimeError(f"the writer reached {done / seconds:,.0f} changes/s of {_RATE}")


class _Timing(HttpReceiver):
    """Notes the delay of each message, and fails those of one key."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.failing: int | None = None
        self.delays: list[float] = []

    def keep(self, request: HttpRequest) -> None:
        """Nothing: the delay is enough."""

    def _answer(self, request: HttpRequest) -> HttpResponse:
        now = time.time()
        row = orjson.loads(request.body)["after"]
        if row["id"] == self.failing:
            return HttpResponse(status=503)
        changed_at = datetime.fromisoformat(row["changed_at"]).timestamp()
        self.delays.append((now - changed_at) * 1000)
        return HttpResponse()


def _serve(port: Connection) -> None:
    with _Timing() as receiver:
        port.send(receiver.port)
        while True:
            order = port.recv()
            if order == "take":
                port.send(receiver.delays)
            else:
                receiver.failing, receiver.delays = order, []
                port.send(None)
