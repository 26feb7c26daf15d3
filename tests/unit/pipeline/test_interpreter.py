"""The interpreter of Spark's Python processes: no module comes from a zip file of Spark."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from tailrace.pipeline import interpreter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK = ["/s/python/lib/pyspark.zip", "/s/python/lib/py4j-0.10.9.9-src.zip", "/s/spark-core_2.jar"]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment as it was, after each test."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "TAILRACE_PYTHON"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (SPARK, []),
        ([*SPARK, "/my folder", "/other.zip"], ["/my folder", "/other.zip"]),
        ([*SPARK, "/*"], ["/*"]),
        (["/a", *SPARK, "/b"], ["/a", "/b"]),
        ([], []),
    ],
)
def test_zip_files_of_spark_are_removed(before: list[str], after: list[str]) -> None:
    interpreter.configure(local=True)
    shown = subprocess.run(
        [os.environ["PYSPARK_PYTHON"], "-c", "import os; print(os.environ['PYTHONPATH'])"],
        env=os.environ | {"PYTHONPATH": ":".join(before)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert [entry for entry in shown.stdout.strip().split(":") if entry] == after


def test_the_arguments_and_the_interpreter_are_ours() -> None:
    interpreter.configure(local=True)
    code = "import sys; print(sys.executable, sys.argv[1:])"
    command = [os.environ["PYSPARK_PYTHON"], "-c", code, "a b", "$c"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == f"{sys.executable} ['a b', '$c']"


def test_the_users_interpreter_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/python3")
    interpreter.configure(local=True)
    assert os.environ["PYSPARK_PYTHON"] == "/usr/bin/python3"


@pytest.mark.parametrize("folder", ["/opt/spark/python/pyspark", "/opt/spark/pyspark.zip/pyspark"])
def test_pyspark_of_a_spark_distribution_is_kept(
    monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setattr(pyspark, "__path__", [folder])
    interpreter.configure(local=True)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_a_cluster_has_interpreters_of_its_own() -> None:
    interpreter.configure(local=False)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_pipelines_discover_no_data_sources() -> None:
    """Spark discovers them only if there is an interpreter for it."""
    interpreter.configure(local=True)
    assert os.environ["PYSPARK_DRIVER_PYTHON"] == os.environ["PYSPARK_PYTHON"]
    interpreter.skip_discovery()
    interpreter.configure(local=True)
    assert shutil.which(os.environ["PYSPARK_DRIVER_PYTHON"]) is None


def test_workers_import_the_installed_pyspark(spark: SparkSession) -> None:
    def found(_: int) -> str:
        import pyspark  # noqa: PLC0415 - in the worker

        return str(pyspark.__file__)

    assert spark.sparkContext.parallelize([0], 1).map(found).collect() == [
        str(Path(pyspark.__file__))
    ]
