"""The Spark session: every setting with its reason, in one place.

The numbers are those of a micro-batch of a hundred rows on two cores, where Spark's defaults take
about 200 ms and these take about 60.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from tailrace.pipeline.expressions.analysis import SETTINGS as MEANING

if TYPE_CHECKING:
    from tailrace.config import Spark

# The heap stays small, so the simplest collector is the quickest on few cores. Arrow checks bounds
# and nulls of every value it reads, a quarter of what the JVM does with rows; these come from
# pyarrow's own writer, and Spark has asked for nulls before.
_JAVA = (
    "-XX:+UseSerialGC -Darrow.enable_unsafe_memory_access=true "
    "-Darrow.enable_null_check_for_get=false"
)
_LOCAL_CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)

SETTINGS = {
    **MEANING,
    # TCP to the Python workers waits 40 ms for a delayed ACK in each task.
    "spark.python.unix.domain.socket.enabled": "true",
    # The default asks helper programs for file permissions: 26 ms for each of two files a batch.
    # Its atomic rename is not needed: one engine owns a data folder, guarded by a lock.
    "spark.sql.streaming.checkpointFileManagerClass": _LOCAL_CHECKPOINTS,
    # Checksum files beside each checkpoint file double that work.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    # Plans are small and fixed; re-planning each of them costs more than it finds.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    # Old checkpoint files are of no use beyond a restart.
    "spark.sql.streaming.minBatchesToRetain": "20",
    # A dozen batches a second fill the history of a user interface nobody opens.
    "spark.ui.enabled": "false",
    "spark.sql.ui.retainedExecutions": "10",
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "100",
    # The engine polls progress every second; at a dozen batches a second this loses none.
    "spark.sql.streaming.numRecentProgressUpdates": "60",
    "spark.ui.showConsoleProgress": "false",
    # A block of messages goes to the delivering worker as soon as it is there: that worker
    # publishes it while the next one is decoded.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(1 << 20),
    # The batch's plan is in memory; nothing else is cached.
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": _JAVA,
    # A listener outside this machine would be a surprise.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

STREAMING = {
    # Spark's planner is large and cold: the second compiler takes a core for minutes to make
    # quicker what the Python workers do anyway. Without it a small batch takes 150 ms instead of
    # 450 on two busy cores. Reading a table of millions of rows, though, it makes thrice as quick.
    "spark.driver.extraJavaOptions": f"{_JAVA} -XX:TieredStopAtLevel=1",
}
"""For a session that runs nothing but small micro-batches."""


def build(settings: Spark, *, name: str = "tailrace") -> SparkSession:
    """The session for these settings; what the user sets wins over ours."""
    # The JVM starts Python by name: without this an unactivated environment finds the system's.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    local = settings.master.startswith("local")
    builder = SparkSession.builder.appName(name).master(settings.master)
    for key, value in SETTINGS.items():
        if local or not key.startswith(("spark.driver.host", "spark.driver.bindAddress")):
            builder = builder.config(key, value)
    for key, value in settings.conf.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
