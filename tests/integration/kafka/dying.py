"""A sink in its own process, which waits between write and flush until it is killed."""

from __future__ import annotations

import sys
import time

from tailrace.position import ORIGIN
from tests.integration.kafka.reading import Bench
from tests.unit.sinks.rows import write


def main(bootstrap: str, topic: str) -> None:
    bench = Bench(bootstrap, topic)
    sink = bench.sink(transactional=True)
    sink.open(ORIGIN)
    write(sink, bench.rows(range(100)))
    sink.flush()
    write(sink, bench.rows(range(100, 200)))
    print("flushed 100, written 200", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
