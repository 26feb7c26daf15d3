"""The interpreter of the Python processes that Spark starts.

Spark puts its own `pyspark.zip` first on their PYTHONPATH. Python keeps no compiled modules of a
zip file, so each process compiles PySpark again: 2.1 s of a core instead of 0.6 s, and the start of
a query takes several processes. `python.sh` removes the zip files from the PYTHONPATH and runs the
interpreter of this process, which finds the PySpark that is installed for it.
"""

from __future__ import annotations

import os
import site
import sys
from pathlib import Path

import py4j
import pyspark

_SCRIPT = Path(__file__).with_name("python.sh")
_INTERPRETER = "TAILRACE_PYTHON"


def configure(*, local: bool) -> None:
    """Set the interpreter of Spark's Python processes, unless `PYSPARK_PYTHON` names one.

    By default Spark starts `python3` from the PATH, which is the system's in a venv that is not
    activated. Call this before the JVM starts: its child processes inherit the environment.
    """
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ[_INTERPRETER] = sys.executable
    without_zip = local and _installed() and os.access(_SCRIPT, os.X_OK)
    os.environ.setdefault("PYSPARK_PYTHON", str(_SCRIPT) if without_zip else sys.executable)


def _installed() -> bool:
    """Whether the interpreter finds PySpark without a PYTHONPATH."""
    folders = {*site.getsitepackages(), site.getusersitepackages()}
    return all(str(Path(module.__path__[0]).parent) in folders for module in (pyspark, py4j))
