"""The systemd units: systemd accepts them, and they fit the commands. They are not started here."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer

from tailrace.cli import app
from tailrace.run.exit_codes import FINAL

ROOT = Path(__file__).parents[3]
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
PROGRAM = "/opt/tailrace/bin/tailrace"
ANALYZE = shutil.which("systemd-analyze")
MAX_EXPOSURE = 20
"""Of 100, by systemd's own count; a unit without hardening has 96."""

pytestmark = pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
needs_analyze = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    assert ANALYZE is not None
    return subprocess.run([ANALYZE, *arguments], check=False, capture_output=True, text=True)


def values(unit: Path, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", unit.read_text(), re.MULTILINE)


@needs_analyze
def test_systemd_accepts_it(unit: Path, tmp_path: Path) -> None:
    """GIVEN the unit with a program that exists WHEN systemd verifies it THEN it has no remark."""
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace(PROGRAM, "/bin/true"))
    done = analyze("verify", "--man=no", str(copy))
    assert [line for line in done.stderr.splitlines() if unit.stem in line] == []
    assert done.returncode == 0, done.stderr


@needs_analyze
def test_it_is_hardened(unit: Path) -> None:
    done = analyze("security", "--offline=true", f"--threshold={MAX_EXPOSURE}", str(unit))
    if "unrecognized option" in done.stderr:
        pytest.skip("systemd-analyze cannot rate a unit offline before version 250")
    assert done.returncode == 0, done.stdout


def test_final_states_are_not_restarted(unit: Path) -> None:
    [codes] = values(unit, "RestartPreventExitStatus")
    assert {int(code) for code in codes.split()} == FINAL.keys()
    guide = (ROOT / "docs" / "guides" / "run.md").read_text()
    assert f"RestartPreventExitStatus={codes}\n" in guide


def test_its_command_exists(unit: Path) -> None:
    [start] = values(unit, "ExecStart")
    program, name, *words = start.split()
    assert program == PROGRAM
    root: Any = typer.main.get_command(app)
    command = root.get_command(None, name)
    context = command.make_context(name, [*words], resilient_parsing=True)
    file = context.params.get("file") or context.params["config"]
    assert str(file) == "/etc/tailrace/tailrace.yml"
    assert context.args == []


def test_units_differ_in_nothing_but_their_command(unit: Path) -> None:
    def common(path: Path) -> list[str]:
        own = ("#", "Description=", "ExecStart=")
        return [line for line in path.read_text().splitlines() if not line.startswith(own)]

    assert common(unit) == common(UNITS[0])
