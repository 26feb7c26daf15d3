"""The Creek client imports without the libraries of PostgreSQL, Spark and Avro."""

from __future__ import annotations

import subprocess
import sys

from tests.imports import loaded


def test_import_needs_neither_spark_nor_postgres_nor_avro() -> None:
    others = ("pyarrow", "psycopg", "pyspark", "pydantic", "fastavro")
    assert loaded("tailrace.client.creek", *others) == []


def test_missing_fastavro_names_the_extra_to_install() -> None:
    program = (
        "import asyncio, sys\n"
        "sys.modules['fastavro'] = None\n"
        "from tailrace.client import creek\n"
        "from tailrace.errors import ConfigError\n"
        "async def main():\n"
        "    async with creek.connect(): pass\n"
        "try:\n"
        "    asyncio.run(main())\n"
        "except ConfigError as error:\n"
        "    print(error.hint)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.strip() == b"pip install 'tailrace[creek]'"
