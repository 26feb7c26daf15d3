"""The functions for PySpark users: a session for Tailrace, or the source in an existing session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.utils import is_remote

from tailrace.config import Spark
from tailrace.pipeline import session as sessions
from tailrace.pipeline.source.stream import TailraceSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Each streaming query sets these variables in the registered source's environment, a Java map that
# is not thread-safe, from its own thread. Two queries that start at the same time can corrupt the
# map's size, and then the tasks of all queries fail. A map that has the names from the start is
# never resized.
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
    settings = {name.replace("__", "."): value for name, value in conf.items()}
    spark = sessions.build(Spark(master=master, conf=settings))
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Register `format("tailrace")` in a session.

    A session finds the format by itself if its Python is the one that Tailrace is installed in. On
    a cluster, or in a virtual environment that is not activated, call this function.
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
