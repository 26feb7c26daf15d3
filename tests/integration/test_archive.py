"""The archive of Spark's classes: a JVM writes it, and another one uses it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tailrace.pipeline import archive

if TYPE_CHECKING:
    from pathlib import Path

# With -Xshare:on a JVM does not start if it cannot use its archive.
USE = """
from tailrace import config
from tailrace.pipeline import session

conf = {"spark.driver.extraJavaOptions": f"{session.JAVA} -Xshare:on"}
spark = session.build(config.Spark(master="local[1]", conf=conf))
mapped = open(f"/proc/{spark.sparkContext._gateway.proc.pid}/maps").read()
assert spark.range(3).count() == 3
print("mapped", ".jsa" in mapped)
"""


def python(*arguments: str, cache: Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_an_archive_is_created_and_used(tmp_path: Path) -> None:
    """`make` creates one before the tests, and stops if it cannot; without it the test does."""
    cache = archive._file().parent.parent
    if not archive._file().exists():
        cache = tmp_path
        assert "Created " in python("-m", "tailrace.pipeline.archive", cache=cache)
        [file] = (cache / "tailrace").iterdir()
        assert file.suffix == ".jsa"
    assert "mapped True" in python("-c", USE, cache=cache)
