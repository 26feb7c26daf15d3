"""Makes `format("tailrace")` work right after `pip install tailrace`.

Spark looks for modules called `pyspark_*` and takes their `DefaultSource`.
"""

from tailrace.pipeline.source.stream import TailraceSource as DefaultSource

__all__ = ["DefaultSource"]
