"""`tailrace broker user` and `tailrace broker acl`, as commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import command

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from tests.fix_postgres import Database


def run(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return command.call("broker", *arguments, stdin=given)


def done(*arguments: str, given: str = "") -> str:
    found = run(*arguments, given=given)
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.fixture
def dsn(database: Database) -> str:
    done("--init", "--dsn", database.dsn)
    return database.dsn


def test_users_are_added_changed_and_removed(database: Database, dsn: str, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("from a file\nand no more\n")
    assert done("user", "add", "ann", "--dsn", dsn, given="secret\n") == "user ann: added\n"
    # --dsn may also be an option of `tailrace broker`.
    assert "added" in done("--dsn", dsn, "user", "add", "root", "--superuser", given="x")
    changed = done("user", "add", "ann", "--password-file", str(file), "--dsn", dsn)
    assert changed == "user ann: password changed\n"
    done("acl", "add", "--user", "ann", "--topic", "a", "--allow", "all", "--dsn", dsn)
    assert done("user", "list", "--dsn", dsn) == "ann\t1 rules\nroot\tsuperuser\n"
    # A new password does not change whether a user is a superuser.
    done("user", "add", "root", "--dsn", dsn, given="y")
    assert "root\tsuperuser" in done("user", "list", "--dsn", dsn)
    done("user", "add", "root", "--no-superuser", "--dsn", dsn, given="y")
    assert "root\t0 rules" in done("user", "list", "--dsn", dsn)
    ((salts, mechanisms),) = database.query(
        "SELECT count(DISTINCT salt), array_agg(DISTINCT mechanism ORDER BY mechanism)"
        " FROM kafka.credentials"
    )
    assert (salts, mechanisms) == (4, ["SCRAM-SHA-256", "SCRAM-SHA-512"])
    done("user", "remove", "ann", "--dsn", dsn)
    last = run("user", "remove", "root", "--dsn", dsn)
    assert "No users remain" in last.stderr
    assert done("user", "list", "--dsn", dsn) == done("acl", "list", "--dsn", dsn) == ""


def test_rules_are_added_and_removed(dsn: str) -> None:
    done("user", "add", "ann", "--dsn", dsn, given="1")
    both = ("--topic", "orders*", "--topic", "bills", "--group", "g*", "--allow", "read,write")
    added = done("acl", "add", "--user", "ann", *both, "--dsn", dsn)
    # A group has no write: it applies to the topics only.
    expected = ["ann\ttopic orders*\tread,write", "ann\ttopic bills\tread,write"]
    assert added.splitlines() == [*expected, "ann\tgroup g*\tread"]
    done("acl", "add", "--user", "ann", "--cluster", "--allow", "create", "--dsn", dsn)
    assert "ann\tcluster\tcreate\n" in done("acl", "list", "--user", "ann", "--dsn", dsn)
    gone = ("acl", "remove", "--user", "ann", "--topic", "orders*")
    assert done(*gone, "--allow", "write", "--dsn", dsn) == "1 removed\n"
    assert "ann\ttopic orders*\tread\n" in done("acl", "list", "--dsn", dsn)
    assert done(*gone, "--dsn", dsn) == "1 removed\n"
    assert "no such rule" in run(*gone, "--dsn", dsn).stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("user", "add", "ann"), "password must not be empty"),
        (("user", "add", ""), "1 to 256 characters"),
        (("user", "add", "ann", "--password-file", "/nowhere"), "cannot read /nowhere"),
        (("user", "remove", "nobody"), "unknown user nobody"),
        (("acl", "add", "--user", "nobody", "--topic", "t", "--allow", "read"), "unknown user"),
        (("acl", "add", "--user", "ann", "--allow", "read"), "--topic, --group or --cluster"),
        (("acl", "add", "--user", "ann", "--topic", "t", "--allow", "fly"), "Use some of"),
        (
            ("acl", "add", "--user", "ann", "--group", "g", "--allow", "write"),
            "does not exist for a group",
        ),
        (("acl", "add", "--user", "ann", "--topic", "a*b", "--allow", "read"), "invalid pattern"),
    ],
)
def test_invalid_accounts_are_refused(dsn: str, arguments: tuple[str, ...], message: str) -> None:
    found = run(*arguments, "--dsn", dsn)
    assert found.returncode == 2
    assert message in found.stderr


def test_missing_tables_are_an_error(database: Database) -> None:
    found = run("user", "list", "--dsn", database.dsn)
    assert found.returncode == 2
    assert "tailrace broker --init" in found.stderr


def test_init_updates_an_older_schema(database: Database, dsn: str) -> None:
    """--init adds missing tables, and keeps existing ones."""
    database.query("SELECT kafka.create_topic('t')")
    tables = ("users", "credentials", "acls", "secrets", "clusters", "groups")
    database.execute("DROP TABLE " + ", ".join(f"kafka.{table}" for table in tables))
    assert "tailrace broker --init" in run("--dsn", dsn).stderr
    done("--init", "--dsn", dsn)
    ((before,),) = database.query("SELECT value FROM kafka.secrets")
    done("--init", "--dsn", dsn)
    assert database.query("SELECT value FROM kafka.secrets") == [(before,)]
    assert database.query("SELECT name FROM kafka.topics") == [("t",)]


@pytest.mark.parametrize(
    "command",
    [("user",), ("acl",), ("groups",), ("user", "add"), ("acl", "add"), ("groups", "list"),
     ("groups", "reset")],
)  # fmt: skip
def test_help_has_examples(command: tuple[str, ...]) -> None:
    found = run(*command, "--help")
    assert found.returncode == 0
    assert "--password " not in found.stdout
    assert len(command) == 1 or "Examples:" in found.stdout
