"""Blocking calls of an event loop: results, errors, and callers that give up."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tailrace.creek.worker import Worker


def test_results_and_errors() -> None:
    async def main() -> None:
        worker = Worker("test")
        assert await worker.run(lambda: 1) == 1
        with pytest.raises(ZeroDivisionError):
            await worker.run(lambda: 1 // 0)
        assert await worker.run(threading.get_ident) != threading.get_ident()

    asyncio.run(main())


def test_a_call_that_was_given_up_does_not_start() -> None:
    """A call that hangs delays neither its caller nor, after it has ended, the next calls."""
    release, started = threading.Event(), []

    async def main() -> None:
        worker = Worker("test")
        for call in (release.wait, lambda: started.append("late")):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(worker.run(call), 0.01)
        release.set()
        assert await worker.run(lambda: "after") == "after"
        assert started == []

    asyncio.run(main())
