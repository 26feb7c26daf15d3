"""What PySpark users call: a session that suits Tailrace, or the source in a session of theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.utils import is_remote

from tailrace.config import Spark
from tailrace.pipeline import session as sessions
from tailrace.pipeline.source.stream import TailraceSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Each streaming query sets these variables in the registered source's own map, from a thread of its
# own. Two that start at once can leave Java's map with a wrong count, and from then on no task of
# any query can be read. A map that has the names from the beginning keeps its shape.
_SET_BY_QUERIES = (
    "SPARK_LOCAL_DIRS",
    "SPARK_AUTH_SOCKET_TIMEOUT",
    "SPARK_BUFFER_SIZE",
    "SPARK_PYTHON_RUNTIME",
)


def session(master: str = "local[*]", **conf: str) -> SparkSession:
    """A Spark session with Tailrace's settings; dots in a setting's name are written as `__`.

    >>> session("local[2]", spark__sql__shuffle__partitions="4")                 # doctest: +SKIP
    """
    given = {name.replace("__", "."): value for name, value in conf.items()}
    spark = sessions.build(Spark(master=master, conf=given))
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Make `format("tailrace")` known to a session.

    A session finds it by itself when its Python is the one Tailrace is installed in; on a cluster,
    and from an environment that is not activated, call this.
    """
    if is_remote():
        spark.dataSource.register(TailraceSource)
        return
    environment = spark.sparkContext.environment
    added = {name: "" for name in _SET_BY_QUERIES if name not in environment}
    environment.update(added)
    try:
        spark.dataSource.register(TailraceSource)
    finally:
        for name in added:
            del environment[name]
