"""The fixture plugins of all tests, one per dependency, and what holds for every test."""

from __future__ import annotations

import gc
import os
import random
from typing import TYPE_CHECKING

import pytest

from tailrace.testing.process import Server
from tests.chance import register_profiles

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

# A plugin that others import stands before them: pytest rewrites its assertions as it loads it.
pytest_plugins = [
    "tests.fix_postgres",
    "tests.fix_capture",
    "tests.fix_log",
    "tests.fix_spark",
    "tests.fix_pipeline",
    "tests.fix_kafka",
    "tests.fix_redis",
    "tests.fix_rabbitmq",
    "tests.fix_aws",
    "tests.fix_pubsub",
    "tests.fix_search",
    "tests.fix_s3",
    "tests.fix_broker",
    "tests.fix_certificates",
]

_LONG_TIMEOUT_S = 900

# Servers are forked and executed at once: handlers of gRPC must not run in between.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

register_profiles()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that need Spark's JVM: starting it takes longer than most unit tests together.

    Give long tests more time: other work may slow a machine down several times. A soak takes as
    long as it takes.
    """
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
        if item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.timeout(0), append=False)
        elif item.get_closest_marker("long") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_LONG_TIMEOUT_S))


def pytest_collection_finish() -> None:
    """Exclude modules and tests from later garbage collections, which take a third of a second."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let the interpreter's last collection include them: nanobind prints what it leaves."""
    gc.unfreeze()


@pytest.fixture
def seed() -> int:
    """Printed, and so shown with a failure; `TAILRACE_SEED` repeats a run."""
    chosen = int(os.environ.get("TAILRACE_SEED") or random.randrange(2**32))
    print(f"seed {chosen}: repeat with TAILRACE_SEED={chosen}")
    return chosen


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the ends of the servers' logs with a failure; those of the past left none."""
    report = yield
    if report.failed:
        for server in Server.known:
            log = server.recent_log(1000)
            if log.partition("\n")[2]:
                report.sections.append((f"{type(server).__name__} log", log))
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Let go of a test's values before its fixtures end.

    Clients of Kafka end with their last reference; the last test of a run would keep its own until
    after the servers of the session have stopped.
    """
    getattr(item, "funcargs", {}).clear()
    yield
