from __future__ import annotations

import subprocess
import sys

import pytest

import tailrace

EXPORTS = [
    "AtLsn",
    "AtTime",
    "Change",
    "Earliest",
    "Latest",
    "Log",
    "Lsn",
    "Op",
    "Position",
    "TailraceError",
    "read_changes",
    "register",
    "session",
]


def test_exports_are_pinned() -> None:
    assert tailrace.__all__ == EXPORTS == sorted(EXPORTS)
    for name in EXPORTS:
        assert getattr(tailrace, name).__module__.startswith("tailrace.")


def test_other_names_are_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tailrace.nothing  # noqa: B018


def test_importing_it_loads_nothing_heavy() -> None:
    program = (
        "import sys, tailrace; print(sorted({'numpy', 'psycopg', 'pyspark'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"
