"""Spark's workers are forked from Tailrace's daemon, with everything loaded."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator  # noqa: TC003 - Spark reads the annotations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql.pandas.functions import arrow_udf

from tailrace.pipeline import daemon

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession


def test_a_worker_has_everything_loaded(spark: SparkSession) -> None:
    def report(_: Iterable[int]) -> Iterator[tuple[str, list[str]]]:
        yield Path(f"/proc/{os.getppid()}/comm").read_text(), list(sys.modules)

    [(parent, modules)] = spark.sparkContext.parallelize([0], 1).mapPartitions(report).collect()
    assert parent == "daemon\n"
    assert set(modules).issuperset(daemon.MODULES)


def test_all_jobs_share_a_daemon(spark: SparkSession) -> None:
    """`tailrace run` starts the daemon with a job, before a query needs it."""

    @arrow_udf("long")  # type: ignore[call-overload,untyped-decorator]
    def parents(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        for batch in batches:
            yield pa.array([os.getppid()] * len(batch))

    context = spark.sparkContext
    [of_job] = context.parallelize([0], 1).map(lambda _: os.getppid()).collect()
    [(of_query,)] = spark.range(0, 1, 1, 1).select(parents("id")).collect()
    assert of_job == of_query


def test_a_worker_may_use_threads_of_libraries(spark: SparkSession) -> None:
    """The pools of Arrow and numpy's OpenBLAS work in a process that was forked with them."""

    def compute(_: Iterable[int]) -> Iterator[tuple[float, int]]:
        square = np.ones((400, 400))
        table = pa.table({"key": pa.array(range(200_000)), "value": pa.array(range(200_000))})
        taken = (
            table.filter(pc.field("key") >= 100_000).group_by("key").aggregate([("value", "sum")])
        )
        yield float((square @ square)[0, 0]), taken.num_rows

    work = spark.sparkContext.parallelize(range(4), 4).mapPartitions(compute)
    assert work.collect() == [(400.0, 100_000)] * 4


def test_a_crash_of_a_worker_shows_where(spark: SparkSession) -> None:
    def crash(_: int) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    with pytest.raises(Py4JJavaError, match=r"Fatal Python error[^$]*in crash"):
        spark.sparkContext.parallelize([0], 1).foreach(crash)
