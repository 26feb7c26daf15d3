"""The whole of `tailrace doctor`: order, table, JSON, exit codes, documentation."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.postgres.connection import connect
from tailrace.postgres.preflight import CHECKS, Severity, run
from tests import command
from tests.integration.doctor.shop import (
    ERROR,
    Shop,
)

if TYPE_CHECKING:
    import subprocess

REFERENCE = Path(__file__).parents[3] / "docs/reference/doctor.md"


def test_a_prepared_source_has_no_errors(either: Shop) -> None:
    either.init()
    with connect(either.database.dsn) as connection:
        findings = run(connection, either.config())
    assert [finding for finding in findings if finding.severity is ERROR] == []
    assert {finding.check for finding in findings} == {check.name for check in CHECKS}


def test_findings_come_gravest_first(shop: Shop) -> None:
    with connect(shop.database.dsn) as connection:
        order = [list(Severity).index(f.severity) for f in run(connection, shop.config())]
    assert order == sorted(order)


def doctor(*arguments: str) -> subprocess.CompletedProcess[str]:
    return command.run("doctor", *arguments, env={"PATH": "", "COLUMNS": "200"})


def test_the_command_without_errors(shop: Shop) -> None:
    shop.init()
    arguments = [
        f"--dsn={shop.database.dsn}",
        "--publication=shop",
        f"--slot={shop.database.name}",
        f"--log={shop.log}",
    ]
    done = doctor(*arguments, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["healthy"] is True
    assert {row["check"] for row in report["findings"]} == {check.name for check in CHECKS}
    assert set(report["findings"][0]) == {"check", "severity", "subject", "finding", "fix"}
    shown = doctor(*arguments, "--all")
    assert shown.returncode == 0
    assert "wal_level is logical" in shown.stdout
    assert "wal_level is logical" not in doctor(*arguments).stdout


def test_the_command_with_errors(shop: Shop) -> None:
    shop.execute('CREATE TABLE "[red]x[/red]" (v int)')
    shop.execute('ALTER PUBLICATION shop ADD TABLE "[red]x[/red]"')
    done = doctor(f"--dsn={shop.database.dsn}", "--publication=shop", f"--log={shop.log}")
    assert done.returncode == 1
    assert "table-replica-identity" in done.stdout
    assert '"[red]x[/red]"' in done.stdout
    missing = doctor(f"--dsn={shop.database.dsn}", "--publication=none", "--json")
    assert missing.returncode == 1
    report = json.loads(missing.stdout)
    assert report["healthy"] is False
    assert report["findings"][0]["severity"] == "error"
    assert "publication-exists" in {row["check"] for row in report["findings"]}


def test_a_server_that_does_not_answer() -> None:
    done = doctor("--dsn=host=127.0.0.1 port=1 password=canary-pw")
    assert done.returncode == 20
    assert done.stderr.startswith("UNREACHABLE: ")
    assert "hint: " in done.stderr
    assert done.stdout == ""
    assert "canary-pw" not in done.stderr


def test_no_password_in_the_report(shop: Shop) -> None:
    dsn = f"{shop.database.dsn} password=canary-pw"
    for mode in ("--json", "--all"):
        done = doctor(f"--dsn={dsn}", mode)
        assert "canary-pw" not in done.stdout + done.stderr


def test_names_are_stable_and_documented() -> None:
    names = [check.name for check in CHECKS]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", name) for name in names)
    documented = re.findall(r"^\| `([a-z-]+)` \|", REFERENCE.read_text(), re.MULTILINE)
    assert documented == names
