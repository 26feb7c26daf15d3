"""Work beside an event loop: results, errors, and callers that have given up."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tailrace.creek.worker import Worker


def test_results_and_errors() -> None:
    async def main() -> None:
        worker = Worker("test")
        assert await worker.do(lambda: 1) == 1
        with pytest.raises(ZeroDivisionError):
            await worker.do(lambda: 1 // 0)
        assert await worker.do(threading.get_ident) != threading.get_ident()

    asyncio.run(main())


def test_what_was_given_up_is_not_begun() -> None:
    """One that hangs holds up neither its caller nor, once it is over, those behind it."""
    release, begun = threading.Event(), []

    async def main() -> None:
        worker = Worker("test")
        for work in (release.wait, lambda: begun.append("late")):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(worker.do(work), 0.01)
        release.set()
        assert await worker.do(lambda: "after") == "after"
        assert begun == []

    asyncio.run(main())
