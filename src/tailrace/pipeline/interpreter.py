"""The interpreter of the Python processes that Spark starts.

Spark puts its own `pyspark.zip` first on their PYTHONPATH. Python keeps no compiled modules of a
zip file, so each process compiles PySpark again: 2.1 s of a core instead of 0.6 s, and the start of
a query takes several processes. `python.sh` removes the zip files from the PYTHONPATH and runs the
interpreter of this process, which finds the PySpark that is installed for it.

`PYSPARK_PYTHON` is for queries. `PYSPARK_DRIVER_PYTHON` is for the discovery of data sources:
before the first one is used, Spark looks for packages named `pyspark_*`.
"""

from __future__ import annotations

import os
import site
import sys
from pathlib import Path

import py4j
import pyspark

from tailrace.pipeline import fork_server

_SCRIPT = Path(__file__).with_name("python.sh")
_INTERPRETER = "TAILRACE_PYTHON"
SINKS = "TAILRACE_SINKS"
"""The variable with the kinds of sinks that workers load; all of them without it."""


def configure(*, local: bool, preload: bool = False) -> None:
    """Set the interpreter of Spark's Python processes, unless `PYSPARK_PYTHON` names one.

    By default Spark starts `python3` from the PATH, which is the system's in a venv that is not
    activated. Call this before the JVM starts: its child processes inherit the environment.
    With `preload`, `python.sh` takes its processes from `tailrace.pipeline.fork_server`.
    """
    os.environ[_INTERPRETER] = sys.executable
    without_zip = local and _installed() and os.access(_SCRIPT, os.X_OK)
    python = str(_SCRIPT) if without_zip else sys.executable
    os.environ.setdefault("PYSPARK_PYTHON", python)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", python)
    if preload and os.environ["PYSPARK_PYTHON"] == str(_SCRIPT):
        fork_server.start()


def skip_discovery() -> None:
    """Have a JVM that starts later discover no data sources: it takes two processes and a second.

    Spark skips it if there is no such interpreter. Sources that are registered are not affected.
    """
    os.environ["PYSPARK_DRIVER_PYTHON"] = os.devnull


def _installed() -> bool:
    """Whether the interpreter finds PySpark without a PYTHONPATH."""
    folders = {*site.getsitepackages(), site.getusersitepackages()}
    return all(str(Path(module.__path__[0]).parent) in folders for module in (pyspark, py4j))
