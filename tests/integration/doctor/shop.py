"""A small database to look at, and ways to ask single checks about it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tailrace.config import Config, load
from tailrace.postgres.bootstrap import initialise
from tailrace.postgres.connection import connect
from tailrace.postgres.names import TableName
from tailrace.postgres.preflight import CHECKS, Facts, Finding, Severity, examine, run
from tailrace.postgres.preflight.facts import gather

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fix_postgres import Database

ERROR, WARNING, INFO, OK = Severity
ORDERS = TableName("public", "orders")


class Shop:
    """A database with a publication `shop` for one table, and the findings about it."""

    def __init__(self, database: Database, log: Path) -> None:
        self.database = database
        self.execute = database.execute
        self.log = log

    def config(self, **source: str) -> Config:
        names = {"dsn": self.database.dsn, "slot": self.database.name, "publication": "shop"}
        return load(None, {"source": names | source, "log": {"path": self.log}})

    def init(self) -> None:
        with connect(self.database.dsn) as connection:
            initialise(connection, self.config(), tables=[ORDERS])

    def facts(self, **source: str) -> Facts:
        config = self.config(**source)
        with connect(config.source.dsn.get_secret_value()) as connection:
            return gather(connection, config, log_exists=False)

    def findings(self, check: str, **source: str) -> list[Finding]:
        config = self.config(**source)
        with connect(config.source.dsn.get_secret_value()) as connection:
            return named(check, run(connection, config))

    def one(self, check: str, **source: str) -> Finding:
        (finding,) = self.findings(check, **source)
        return finding

    def fix(self, finding: Finding) -> None:
        """Run the finding's own advice."""
        self.execute(finding.fix.split(" -- ")[0])


def named(check: str, findings: list[Finding]) -> list[Finding]:
    assert check in {known.name for known in CHECKS}
    return [finding for finding in findings if finding.check == check]


def judged(facts: Facts, check: str) -> Finding:
    (finding,) = named(check, examine(facts))
    return finding


def with_settings(facts: Facts, **settings: str) -> Facts:
    return replace(facts, settings={**facts.settings, **settings})
