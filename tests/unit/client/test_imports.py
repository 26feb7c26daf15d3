"""The client imports without the libraries of PostgreSQL and Spark."""

from __future__ import annotations

import subprocess
import sys


def test_import_needs_neither_spark_nor_postgres() -> None:
    program = (
        "import sys, tailrace.client;"
        "print(sorted({'pyarrow', 'psycopg', 'pyspark', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"
