"""Checks of the role and of the connection: privileges, inherited settings, encryption."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.finding import check, error, info, warning
from tailrace.postgres.connection import PINNED
from tailrace.postgres.names import quote_ident

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.finding import Finding
    from tailrace.postgres.preflight.facts import Facts, RoleSetting

_TIMEOUTS = {"statement_timeout", "transaction_timeout", "idle_session_timeout"}


@check("role-replication", "the role may replicate")
def replication(facts: Facts) -> Iterator[Finding]:
    """The slot and the stream need REPLICATION."""
    if not (facts.role.replication or facts.role.superuser):
        name = quote_ident(facts.role.name)
        yield error(
            f"role {facts.role.name} has no REPLICATION attribute",
            f"ALTER ROLE {name} REPLICATION; -- on Amazon RDS: GRANT rds_replication TO {name};",
        )


@check("role-superuser", "the role is not a superuser")
def superuser(facts: Facts) -> Iterator[Finding]:
    """A leaked DSN should not give access to the whole server."""
    if facts.role.superuser:
        yield warning(
            f"role {facts.role.name} is a superuser",
            "Use a dedicated role with LOGIN, REPLICATION and SELECT: tailrace init --print-sql",
        )


@check("role-select", "the role may read every published table", needs=("publication",))
def select(facts: Facts) -> Iterator[Finding]:
    """Snapshots need SELECT; the stream does not."""
    role = quote_ident(facts.role.name)
    for table in facts.tables:
        missing = []
        if not table.schema_usable:
            missing.append(f"GRANT USAGE ON SCHEMA {quote_ident(table.namespace)} TO {role};")
        if not table.selectable:
            missing.append(f"GRANT SELECT ON {table.table.quoted} TO {role};")
        if missing:
            yield warning(
                f"role {facts.role.name} may not read the table, so snapshots of it fail",
                " ".join(missing),
                str(table.table),
            )


@check("role-activity", "the role sees when open transactions of other roles began")
def activity(facts: Facts) -> Iterator[Finding]:
    """Snapshots and backfills use it to bound the changes that they do not contain."""
    if not facts.role.sees_activity:
        role = quote_ident(facts.role.name)
        yield info(
            "the role does not see the sessions of other roles: consumers of a snapshot cannot "
            "check that their stream starts early enough, and a backfill reads the whole log once",
            f"GRANT pg_read_all_stats TO {role};",
        )


@check("role-settings", "no setting of the role or database affects Tailrace's sessions")
def settings(facts: Facts) -> Iterator[Finding]:
    """Tailrace pins the settings of text output; timeouts would end long reads."""
    for setting in facts.role_settings:
        text = f"the {setting.scope} has {setting.name} = {setting.value}"
        if setting.name.lower() in PINNED:
            yield info(f"{text}; Tailrace's sessions pin this setting and are not affected")
        elif setting.name in _TIMEOUTS and setting.value.lstrip("0")[:1].isdigit():
            yield warning(f"{text}, which would end a long snapshot", _reset(facts, setting))


def _reset(facts: Facts, setting: RoleSetting) -> str:
    role, name = quote_ident(facts.role.name), quote_ident(setting.name)
    # A setting of the role has precedence over those of the database and the server.
    if setting.scope in {"server", "database"}:
        return f"ALTER ROLE {role} SET {name} = 0;"
    where = f" IN DATABASE {quote_ident(facts.database)}" if "database" in setting.scope else ""
    return f"ALTER ROLE {role}{where} RESET {name};"


@check("tls", "the connection is encrypted and the server's identity verified, or it is local")
def tls(facts: Facts) -> Iterator[Finding]:
    """Only sslmode=verify-full verifies the server's identity."""
    link = facts.link
    fix = "Add to source.dsn: sslmode=verify-full sslrootcert=/path/to/ca.crt"
    if link.local or (link.encrypted and link.sslmode == "verify-full"):
        return
    if link.encrypted:
        yield (info if link.loopback else warning)(
            "the connection is encrypted, but "
            f"sslmode={link.sslmode} does not verify the server's identity",
            fix,
        )
    elif link.loopback:
        yield info("the connection is not encrypted; it stays on this machine", fix)
    else:
        yield warning("the connection is not encrypted: rows cross the network in clear text", fix)


CHECKS = (replication, superuser, select, activity, settings, tls)
