"""The Spark session: every setting with its reason, in one place.

The figures are for a micro-batch of a hundred rows on two cores, where Spark's defaults take about
200 ms and these settings about 60 ms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from tailrace.pipeline import archive, interpreter
from tailrace.pipeline.expressions.analysis import SETTINGS as EXPRESSION_SETTINGS

if TYPE_CHECKING:
    from tailrace.config import Spark

# The heap stays small, so the serial collector is the fastest on few cores. Arrow checks bounds and
# nulls of every value it reads, a quarter of the JVM's work per row. pyarrow has written these
# values, and Spark tests for null before it reads one.
JAVA = (
    "-XX:+UseSerialGC -Darrow.enable_unsafe_memory_access=true "
    "-Darrow.enable_null_check_for_get=false"
)
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOCAL_CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)

SETTINGS = {
    **EXPRESSION_SETTINGS,
    # Over TCP each task waits 40 ms for a delayed ACK of the Python worker.
    "spark.python.unix.domain.socket.enabled": "true",
    # The default starts helper programs for file permissions: 26 ms for each of two files per
    # batch. Its atomic rename is not needed: a lock ensures that one process owns a data folder.
    "spark.sql.streaming.checkpointFileManagerClass": _LOCAL_CHECKPOINTS,
    # The default also writes a checksum file per checkpoint file, which doubles that work.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    # Plans are small and fixed; adaptive execution costs more than it saves.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    # A restart needs the last checkpoint files only.
    "spark.sql.streaming.minBatchesToRetain": "20",
    # A dozen batches per second would fill the history of a user interface that is not used.
    "spark.ui.enabled": "false",
    "spark.sql.ui.retainedExecutions": "10",
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "100",
    # Tailrace polls progress every second; at a dozen batches per second none is lost.
    "spark.sql.streaming.numRecentProgressUpdates": "60",
    "spark.ui.showConsoleProgress": "false",
    # Small Arrow batches: the delivering worker publishes a block while the next one is decoded.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(1 << 20),
    # Only the plan of a batch is in memory; nothing is cached.
    "spark.driver.memory": "1g",
    _JAVA_OPTIONS: JAVA,
    # Listen on the loopback interface only.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

_LOOPBACK = ("spark.driver.host", "spark.driver.bindAddress")

STREAMING = {
    # Spark's planner is large, and most of the work is done by Python workers. The JVM's second
    # compiler (C2) uses a core for minutes to optimize it. Without C2 a small batch takes 150 ms
    # instead of 450 ms on two busy cores. Reading a table of millions of rows is three times as
    # fast with C2, so other sessions keep it.
    _JAVA_OPTIONS: f"{JAVA} -XX:TieredStopAtLevel=1",
}
"""Further settings for a session that runs small micro-batches only."""


def build(settings: Spark, *, name: str = "tailrace") -> SparkSession:
    """Create the session; the user's `conf` wins over `SETTINGS`."""
    local = settings.master.startswith("local")
    interpreter.configure(local=local)
    builder = SparkSession.builder.appName(name).master(settings.master)
    conf = SETTINGS | settings.conf
    conf[_JAVA_OPTIONS] = archive.add_to(conf[_JAVA_OPTIONS])
    for key, value in conf.items():
        if local or key not in _LOOPBACK or key in settings.conf:
            builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
