"""What PySpark users call: a session that suits Tailrace, or the source in a session of theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.config import Spark
from tailrace.pipeline import session as sessions
from tailrace.pipeline.source import TailraceSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    spark.dataSource.register(TailraceSource)
