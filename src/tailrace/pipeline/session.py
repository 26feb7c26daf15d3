"""The Spark session: every setting with its reason, in one place.

The figures are for a micro-batch of a hundred rows on two cores, where Spark's defaults take about
200 ms and these settings about 60 ms.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pyspark import SparkConf, SparkContext
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
    # Listen on the loopback interface only, where any user of the machine can connect: Spark
    # creates a secret that only its own processes know.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.authenticate": "true",
    # A worker is forked with everything loaded, instead of loading it for a second.
    "spark.python.daemon.module": "tailrace.pipeline.daemon",
    # A worker that crashes leaves its Python stack in the error of its task. Both, because Spark
    # has a daemon per environment: jobs and SQL share one.
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    # Spark sets this variable for SQL alone.
    "spark.executorEnv.SPARK_SIMPLIFIED_TRACEBACK": "1",
}

_THIS_MACHINE = ("spark.driver.host", "spark.driver.bindAddress", "spark.python.daemon.module")
"""Settings for executors on this machine only."""
_THIS_PROCESS = ("spark.authenticate",)
"""Settings for executors in the JVM of the driver only: Spark creates no secret for others."""
_SECRET = re.compile(r"(?i)secret|password|token|access[.]?key")
"""Names of settings whose values Spark hides in its own output: `spark.redaction.regex`."""

STREAMING = {
    # Spark's planner is large, and most of the work is done by Python workers. The JVM's second
    # compiler (C2) uses a core for minutes to optimize it. Without C2 a small batch takes 150 ms
    # instead of 450 ms on two busy cores. Reading a table of millions of rows is three times as
    # fast with C2, so other sessions keep it.
    _JAVA_OPTIONS: f"{JAVA} -XX:TieredStopAtLevel=1",
    # Hadoop sets the mode of checkpoint files itself, and does not see the umask of the process.
    "spark.hadoop.fs.permissions.umask-mode": "077",
}
"""Further settings for a session that runs the pipelines and nothing else."""


def build(settings: Spark, *, name: str = "tailrace", preload: bool = True) -> SparkSession:
    """Create the session; the user's `conf` wins over `SETTINGS`.

    With `preload`, Spark's Python processes are forked from one that has everything loaded.
    """
    interpreter.configure(local=_local(settings), preload=preload)
    conf = {"spark.app.name": name, "spark.master": settings.master} | conf_of(settings)
    _start_jvm(conf)
    builder = SparkSession.builder
    for key, value in conf.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def conf_of(settings: Spark) -> dict[str, str]:
    """Spark's settings.

    On a cluster, Spark chooses the address that executors connect to. Their daemon is PySpark's: it
    starts before Spark adds the files of the application, which Tailrace may be one of.
    """
    conf = SETTINGS | settings.conf
    conf[_JAVA_OPTIONS] = archive.add_to(conf[_JAVA_OPTIONS])
    dropped = (() if settings.on_this_machine else _THIS_MACHINE) + (
        () if _local(settings) else _THIS_PROCESS
    )
    return {key: value for key, value in conf.items() if key not in dropped or key in settings.conf}


def _local(settings: Spark) -> bool:
    """Whether the executors are threads of the driver's JVM."""
    return settings.master.startswith("local")


def _start_jvm(conf: dict[str, str]) -> None:
    """Start the JVM, unless it runs, without the secrets among the settings.

    PySpark passes the settings of a new JVM on its command line, which all users of the machine can
    read. The session sets the secrets later, over PySpark's socket.
    """
    if SparkContext._gateway is None:
        public = [(key, value) for key, value in conf.items() if not _SECRET.search(key)]
        SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(public))
