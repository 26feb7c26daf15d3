"""The process that Spark's Python workers are forked from.

PySpark's own daemon imports almost nothing before it forks, so each worker loads Arrow, numpy and
Tailrace again: a second of a core, and a task has two workers. This daemon loads them first. A
worker then starts in milliseconds and shares the memory of the modules. Spark runs this module if
`spark.python.daemon.module` names it.

A fork copies one thread only. The modules may be imported before it, but nothing is opened: a
client, a pool or a connection belongs to the worker that uses it. The threads that numpy's OpenBLAS
and Arrow's jemalloc start by themselves are handled by these libraries.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from pyspark import daemon

from tailrace.pipeline import interpreter
from tailrace.pipeline.worker import BACKGROUND
from tailrace.sinks.registry import SINKS

if TYPE_CHECKING:
    from collections.abc import Iterator


def _sinks() -> Iterator[str]:
    """The modules of the built-in sinks that are used, or of all: beside a `sink_type` is its sink.

    Libraries of clients are large: those of all sinks take a second of a core and 60 MB.
    """
    used = os.environ.get(interpreter.SINKS)
    for name, path in SINKS.built_in.items():
        if used is None or name in used.split(","):
            module = str(path).partition(":")[0]
            yield from (module, module.removesuffix("_type"))


MODULES = (
    "pyspark.worker",
    "pyspark.sql.worker.plan_data_source_read",
    # pyarrow and sockets load these when they are first used.
    "numpy.ma",
    "encodings.idna",
    "tailrace.pipeline.source.stream",
    "tailrace.pipeline.frames.build",
    "tailrace.pipeline.deliver",
    "tailrace.encode.encoder",
    "tailrace.encode.layout",
    "tailrace.encode.records",
    "tailrace.encode.creek.layout",
    "tailrace.encode.shapes.bridge",
    "tailrace.encode.shapes.debezium",
    "tailrace.encode.shapes.plain",
    "tailrace.encode.shapes.row",
    "tailrace.encode.shapes.sequin",
    "tailrace.encode.syntaxes.json",
    "tailrace.encode.syntaxes.msgpack",
    *_sinks(),
)
"""What workers of pipelines use: reading, decoding, encoding, delivering."""
SNAPSHOT_MODULES = ("pyspark.worker", "tailrace.pipeline.publish")
"""What workers use that publish snapshots. They have a daemon of their own."""


def load(*modules: str) -> None:
    """Import modules, as far as they can be: a worker that needs another one reports it.

    The client library of a sink is in the extra of that sink.
    """
    # Spark reads the daemon's address from its output.
    with contextlib.redirect_stdout(sys.stderr):
        for module in modules:
            with contextlib.suppress(ImportError):
                import_module(module)


def main() -> None:
    """Load what the workers need, then fork one whenever Spark asks for it."""
    load(*(SNAPSHOT_MODULES if BACKGROUND in os.environ else MODULES))
    # Objects that no collection visits are never written to, so their memory stays shared.
    gc.collect()
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
