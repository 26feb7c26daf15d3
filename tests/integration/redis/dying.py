"""A sink in its own process, which writes and flushes until it is killed."""

from __future__ import annotations

import sys

from tailrace.position import ORIGIN
from tests.integration.redis.bench import Bench
from tests.unit.sinks.rows import write

COUNT = 200_000


def main(url: str, name: str) -> None:
    bench = Bench(url, name, batch_rows=50)
    with bench.opened(ORIGIN) as sink:
        for start in range(0, COUNT, 1000):
            write(sink, bench.rows(range(start, start + 1000)))
            if start % 5000 == 0:
                sink.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
