"""An archive of Spark's classes, which halves the time that its JVM takes to start.

Spark loads about 15,000 classes before the first batch. `python -m tailrace.pipeline.archive` has a
JVM load them, and write them to a file that another JVM maps into its memory (class data sharing).
On two cores a session then starts in 3.5 s instead of 8.5 s, and its first job takes 1.5 s instead
of 4 s. Sessions use the archive if there is one. A JVM ignores the archive of another version of
Java or of other jars.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator  # noqa: TC003 - Spark reads the annotations
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa  # noqa: TC002 - Spark reads the annotations
import pyspark
from pyspark import SparkContext
from pyspark.sql import functions
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.functions import arrow_udf
from typing_extensions import override

from tailrace.errors import UnexpectedError
from tailrace.java import cache_folder, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROWS = 10
_SHOWN_CHARACTERS = 3000
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_EXPRESSIONS = (
    "id",
    "cast(id AS decimal(38, 18)) AS price",
    "cast(id AS string) AS name",
    "cast('2024-01-02 03:04:05' AS timestamp) AS moment",
    "array(id, id) AS pair",
    "CASE WHEN id % 2 = 0 THEN 'even' ELSE upper('odd') END AS parity",
)


def add_to(java: str) -> str:
    """Options of a JVM, with the archive if there is one and they do not name one."""
    file = _file()
    if "Archive" in java or not file.exists():
        return java
    return f'{java} "-XX:SharedArchiveFile={file}" {_QUIET}'


def create() -> Path:
    """Create the archive, or replace it. Takes about a minute."""
    file = _file()
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="classes-", dir=file.parent) as folder:
        new = Path(folder) / file.name
        train = [sys.executable, "-m", __spec__.name, str(new)]
        done = subprocess.run(train, capture_output=True, text=True, check=False)
        if done.returncode or not new.exists():
            output = (done.stdout + done.stderr)[-_SHOWN_CHARACTERS:]
            raise UnexpectedError(f"the archive of Spark's classes cannot be created:\n{output}")
        new.replace(file)
    return file


def _file() -> Path:
    java = find_java() or ""
    home = os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent
    key = hashlib.sha256(f"{Path(java).resolve()}\0{home}".encode()).hexdigest()[:12]
    return cache_folder() / f"spark-{pyspark.__version__}-{key}.jsa"


def _train(file: Path) -> None:
    """Run what pipelines, snapshots and expressions use in a JVM that writes the archive."""
    from tailrace import config  # noqa: PLC0415 - `session` imports this module
    from tailrace.pipeline import session  # noqa: PLC0415

    java = f'{session.JAVA} "-XX:ArchiveClassesAtExit={file}" {_QUIET}'
    conf = {"spark.driver.extraJavaOptions": java}
    spark = session.build(config.Spark(master="local[2]", conf=conf))
    _use(spark, file.with_suffix(".checkpoint"))
    _stop(spark)


def _use(spark: SparkSession, checkpoint: Path) -> None:
    spark.range(_ROWS).selectExpr(*_EXPRESSIONS).where("price > 1").orderBy("id").collect()
    spark.dataSource.register(_Numbers)
    unchanged = arrow_udf(_unchanged, "bigint")  # type: ignore[call-overload]
    batch = spark.read.format("numbers").load().select(unchanged("id").alias("id"))
    batch.repartition(2).groupBy("id").count().collect()
    query = (
        spark.readStream.format("numbers")
        .load()
        .select(unchanged("id").alias("id"))
        .observe("numbers", functions.count("*").alias("rows"))
        .writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    query.processAllAvailable()
    query.stop()


def _stop(spark: SparkSession) -> None:
    """Stop the JVM and wait until it has ended: it writes the archive last."""
    gateway = SparkContext._gateway
    assert gateway is not None
    spark.stop()
    gateway.shutdown()
    process = gateway.proc
    process.stdin.close()
    process.wait()


def _unchanged(columns: Iterator[pa.Array]) -> Iterator[pa.Array]:
    yield from columns


class _Table(DataSourceReader):
    @override
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(2)]

    @override
    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        yield (partition.value,)


class _Stream(DataSourceStreamReader):
    @override
    def initialOffset(self) -> dict[str, int]:
        return {"end": 0}

    @override
    def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:
        return {"end": 2}

    @override
    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(number) for number in range(start["end"], end["end"])]

    @override
    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        yield (partition.value,)


class _Numbers(DataSource):
    """Rows from Python, as a table and as a stream."""

    @override
    @classmethod
    def name(cls) -> str:
        return "numbers"

    @override
    def schema(self) -> str:
        return "id bigint"

    @override
    def reader(self, schema: object) -> _Table:
        return _Table()

    @override
    def streamReader(self, schema: object) -> _Stream:
        return _Stream()


if __name__ == "__main__":
    if sys.argv[1:]:
        _train(Path(sys.argv[1]))
    else:
        sys.stdout.write("Creating an archive of Spark's classes, in about a minute ...\n")
        sys.stdout.write(f"Created {create()}\n")
