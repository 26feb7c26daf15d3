"""A sink in its own process, which waits between write and flush until it is killed."""

from __future__ import annotations

import sys
import time

from tailrace.position import ORIGIN
from tailrace.sinks.contract import Lane
from tailrace.sinks.postgres.settings import PostgresSink
from tailrace.sinks.postgres.sink import Postgres
from tests.integration.postgres.bench import batch


def main(dsn: str) -> None:
    settings = PostgresSink.model_validate({"type": "postgres", "dsn": dsn})
    sink = Postgres(settings, Lane(pipeline="p", history="one"))
    sink.open(ORIGIN)
    sink.write(batch(range(100)))
    sink.flush()
    sink.write(batch(range(100, 200)))
    print("flushed 100, written 200", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
