"""What a reading process of Spark loads: every query starts one."""

from __future__ import annotations

import subprocess
import sys


def test_reading_the_log_needs_no_client_of_postgresql() -> None:
    program = (
        "import sys, tailrace.pipeline.source.stream\n"
        "print(sorted({'psycopg', 'pydantic', 'nats', 'confluent_kafka'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"
