from __future__ import annotations

import threading

from tailrace.errors import SinkUnreachableError
from tailrace.schemas import publisher as schemas


def test_a_failure_is_tried_again_and_the_start_is_published_once() -> None:
    stop = threading.Event()
    calls: list[str] = []

    def publish() -> None:
        calls.append("publish")
        if len(calls) == 1:
            raise SinkUnreachableError("not yet")
        stop.set()

    schemas.follow([publish], lambda: False, stop)
    assert calls == ["publish", "publish"]


def test_a_change_is_published_at_once() -> None:
    stop = threading.Event()
    news = iter([False, False, True])
    calls: list[int] = []

    def changed() -> bool:
        found = next(news, None)
        if found is None:
            stop.set()
        return bool(found)

    schemas.follow([lambda: calls.append(1)], changed, stop)
    assert len(calls) == 2
