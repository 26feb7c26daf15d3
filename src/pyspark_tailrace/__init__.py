"""Registers `format("tailrace")` with Spark as soon as Tailrace is installed.

Spark imports modules named `pyspark_*` and registers their `DefaultSource`.
"""

from tailrace.pipeline.source.stream import TailraceSource as DefaultSource

__all__ = ["DefaultSource"]
