"""Checks of the role and the line: what it may do, what it inherits, who can listen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.finding import check, error, info, warning
from tailrace.postgres.connection import PINNED, quote_ident

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.finding import Finding
    from tailrace.postgres.preflight.facts import Facts, RoleSetting

_TIMEOUTS = {"statement_timeout", "transaction_timeout", "idle_session_timeout"}


@check("role-replication", "the role may replicate")
def replication(facts: Facts) -> Iterator[Finding]:
    """Without REPLICATION, neither the slot nor the stream can be used."""
    if not (facts.role.replication or facts.role.superuser):
        name = quote_ident(facts.role.name)
        yield error(
            f"role {facts.role.name} has no REPLICATION attribute",
            f"ALTER ROLE {name} REPLICATION; -- on Amazon RDS: GRANT rds_replication TO {name};",
        )


@check("role-superuser", "the role is no superuser")
def superuser(facts: Facts) -> Iterator[Finding]:
    """A leaked DSN should not be the whole server."""
    if facts.role.superuser:
        yield warning(
            f"role {facts.role.name} is a superuser",
            "Use a role of its own with LOGIN, REPLICATION and SELECT: tailrace init --print-sql",
        )


@check("role-select", "the role may read every published table", needs=("publication",))
def select(facts: Facts) -> Iterator[Finding]:
    """The stream needs no SELECT; snapshots do."""
    role = quote_ident(facts.role.name)
    for table in facts.tables:
        missing = []
        if not table.schema_usable:
            missing.append(f"GRANT USAGE ON SCHEMA {quote_ident(table.namespace)} TO {role};")
        if not table.selectable:
            missing.append(f"GRANT SELECT ON {table.table.quoted} TO {role};")
        if missing:
            yield warning(
                f"role {facts.role.name} may not read the table, so it can not be snapshotted",
                " ".join(missing),
                str(table.table),
            )


@check("role-activity", "the role sees since when others have been writing")
def activity(facts: Facts) -> Iterator[Finding]:
    """Snapshots and backfills need to know which changes they may not see."""
    if not facts.role.sees_activity:
        role = quote_ident(facts.role.name)
        yield info(
            "the role does not see what others do: consumers of a snapshot can not check that "
            "their stream reaches back far enough, and a backfill reads the whole log once",
            f"GRANT pg_read_all_stats TO {role};",
        )


@check("role-settings", "no setting of the role or database reaches into our sessions")
def settings(facts: Facts) -> Iterator[Finding]:
    """Text-output settings are pinned by us; timeouts would cut long reads."""
    for setting in facts.role_settings:
        text = f"the {setting.scope} has {setting.name} = {setting.value}"
        if setting.name.lower() in PINNED:
            yield info(f"{text}; Tailrace's sessions pin this setting and are not affected")
        elif setting.name in _TIMEOUTS and setting.value.lstrip("0")[:1].isdigit():
            yield warning(f"{text}, which would cut a long snapshot", _reset(facts, setting))


def _reset(facts: Facts, setting: RoleSetting) -> str:
    role, name = quote_ident(facts.role.name), quote_ident(setting.name)
    # A role's own setting wins over the database's and the server's.
    if setting.scope in {"server", "database"}:
        return f"ALTER ROLE {role} SET {name} = 0;"
    where = f" IN DATABASE {quote_ident(facts.database)}" if "database" in setting.scope else ""
    return f"ALTER ROLE {role}{where} RESET {name};"


@check("tls", "the line is private")
def tls(facts: Facts) -> Iterator[Finding]:
    """Only verify-full knows that it is the right server."""
    line = facts.line
    fix = "Add to source.dsn: sslmode=verify-full sslrootcert=/path/to/ca.crt"
    if line.local or (line.encrypted and line.sslmode == "verify-full"):
        return
    if line.encrypted:
        yield (info if line.loopback else warning)(
            f"the line is encrypted, but sslmode={line.sslmode} does not prove who the server is",
            fix,
        )
    elif line.loopback:
        yield info("the line is not encrypted; it stays on this machine", fix)
    else:
        yield warning("the line is not encrypted: rows cross the network in clear text", fix)


CHECKS = (replication, superuser, select, activity, settings, tls)
