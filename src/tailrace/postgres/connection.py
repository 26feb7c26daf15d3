"""Connections to PostgreSQL: options of libpq, translation of errors, quoting of names.

Every component connects to the source through this module, so that all sessions have the same text
output, a lost connection is always noticed, every error has a code of Tailrace, and no message
contains a password.

Not for replication commands: `tailrace.capture.replication` sends those over its own connection,
opened with the same `conninfo`.
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tailrace.errors import (
    ConfigError,
    PostgresRefusedError,
    PostgresUnreachableError,
    SlotBusyError,
    SlotLostError,
    TailraceError,
)
from tailrace.postgres.names import quote_ident

if TYPE_CHECKING:
    from collections.abc import Iterator

PINNED = {
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "timezone": "UTC",
    "standard_conforming_strings": "on",
}
"""Settings that change the text form of values. A role, a database or a client variable may set
any of them, and the log must not depend on that."""

SESSION_SQL = "; ".join(f"SET {name} TO '{value}'" for name, value in PINNED.items())
"""Pins the same settings inside an open session. libpq sends PGTZ and PGDATESTYLE after `options`,
so the startup packet alone does not override them."""

VALUES_SQL = "; ".join(
    (
        SESSION_SQL,
        "SET search_path TO ''",
        "SET quote_all_identifiers TO off",
        "SET row_security TO off",
    )
)
"""For sessions that produce values, stream and snapshot: the search path decides whether a regclass
is printed with its schema, and a policy for row security must raise an error, not hide rows. Not
for sessions that resolve names a user typed."""

_KEEPALIVE = {
    "keepalives": "1",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
_SECRET_KEYS = ("password", "sslpassword", "oauth_client_secret")
_MASK = "***"


def conninfo(
    dsn: str,
    *,
    replication: bool = False,
    application_name: str = "tailrace",
    connect_timeout_s: int = 10,
) -> str:
    """The user's connection string with the options that Tailrace needs.

    Options of the user have precedence, whether from `dsn` or from a `PG*` variable, except for the
    pinned session settings and the client encoding.
    """
    parameters = _parse(dsn)
    users = _environment() | parameters
    defaults = {
        **_KEEPALIVE,
        "application_name": application_name,
        "connect_timeout": str(connect_timeout_s),
    }
    parameters |= {key: value for key, value in defaults.items() if not users.get(key)}
    # The options of a service file are not visible here: setting `options` would replace them.
    if users.get("options") or not parameters.get("service"):
        pinned = " ".join(f"-c {name}={value}" for name, value in PINNED.items())
        parameters["options"] = f"{users.get('options', '')} {pinned}".strip()
    parameters["client_encoding"] = "UTF8"
    if replication:
        parameters["replication"] = "database"
    return make_conninfo("", **parameters)


def connect(
    dsn: str,
    *,
    application_name: str = "tailrace",
    connect_timeout_s: int = 10,
) -> psycopg.Connection:
    """A session in autocommit mode with the pinned settings."""
    text = conninfo(dsn, application_name=application_name, connect_timeout_s=connect_timeout_s)
    try:
        connection = psycopg.connect(text, autocommit=True)
    except psycopg.Error as error:
        raise translate(error, dsn=dsn) from error
    try:
        connection.execute(SESSION_SQL)
    except psycopg.Error as error:
        connection.close()
        raise translate(error, dsn=dsn) from error
    return connection


async def connect_async(
    dsn: str, *, application_name: str = "tailrace", connect_timeout_s: int = 10
) -> psycopg.AsyncConnection[Any]:
    """The same session as `connect`, for an event loop."""
    text = conninfo(dsn, application_name=application_name, connect_timeout_s=connect_timeout_s)
    try:
        connection = await psycopg.AsyncConnection.connect(text, autocommit=True)
    except psycopg.Error as error:
        raise translate(error, dsn=dsn) from error
    try:
        await connection.execute(SESSION_SQL.encode())
    except psycopg.Error as error:
        await connection.close()
        raise translate(error, dsn=dsn) from error
    return connection


def _parse(dsn: str) -> dict[str, str]:
    try:
        return {key: str(value) for key, value in conninfo_to_dict(dsn).items()}
    except psycopg.ProgrammingError as error:
        # libpq quotes the part that it cannot parse, which may be the password: do not chain it.
        raise ConfigError(
            f"source.dsn: {_unquoted(str(error))}",
            hint="Write host=... dbname=... user=... or postgresql://user@host:port/dbname. "
            "Quote values with spaces as 'a b'; percent-encode special characters of a URI.",
        ) from None


def _unquoted(message: str) -> str:
    tidy = re.sub(r'"[^"]*"?', '"..."', message.strip())
    if not tidy.startswith(("invalid connection option", "invalid URI query parameter")):
        return tidy
    options = [option.keyword.decode() for option in pq.Conninfo.get_defaults()]
    name = re.search(r'"([^"]*)"', message)
    close = difflib.get_close_matches(name[1] if name else "", options, n=1)
    return f"{tidy}, did you mean {close[0]}?" if close else tidy


def _environment() -> dict[str, str]:
    return {
        option.keyword.decode(): option.val.decode(errors="replace")
        for option in pq.Conninfo.get_defaults()
        if option.val
    }


def redact(text: str, dsn: str = "") -> str:
    """`text` without passwords: those of connection strings, and those of `dsn` in any encoding."""
    text = re.sub(r"(://[^\s:@]*):\S*@", rf"\1:{_MASK}@", text)
    keys = "|".join(_SECRET_KEYS)
    text = re.sub(rf"(?i)({keys})\s*=\s*('(?:\\.|[^'\\])*'?|[^\s&]*)", rf"\1={_MASK}", text)
    for secret in sorted(set(_spellings(dsn)), key=len, reverse=True):
        # A short password would otherwise match inside ordinary words.
        edge = r"\b" if len(secret) < 4 and secret.isalnum() else ""
        text = re.sub(f"{edge}{re.escape(secret)}{edge}", _MASK, text)
    return text


def _known(dsn: str) -> dict[str, str]:
    try:
        return _parse(dsn)
    except ConfigError:
        return {}


def _spellings(dsn: str) -> Iterator[str]:
    parameters = _known(dsn)
    secrets = [parameters.get(key, "") for key in _SECRET_KEYS]
    for secret in filter(None, [*secrets, os.environ.get("PGPASSWORD", "")]):
        yield from (secret, quote(secret, safe=""), quote_plus(secret), quote(secret))
        yield secret.replace("\\", "\\\\").replace("'", "\\'")


def translate(error: psycopg.Error, *, dsn: str = "") -> TailraceError:
    """The error of Tailrace for an error of psycopg."""
    message = error.diag.message_primary or str(error)
    if error.diag.message_detail:
        message = f"{message}: {error.diag.message_detail}"
    return classify(error.sqlstate, message, dsn=dsn)


def translate_error(connection: psycopg.Connection, error: psycopg.Error) -> TailraceError:
    """The error of Tailrace for a statement that failed on `connection`."""
    try:
        dsn = make_conninfo("", user=connection.info.user)
    except psycopg.OperationalError:
        dsn = ""
    return translate(error, dsn=dsn)


def classify(sqlstate: str | None, message: str, *, dsn: str = "") -> TailraceError:
    """The error of Tailrace for a message of PostgreSQL or libpq.

    A failed connection attempt has no SQLSTATE, so the text decides. An unknown text, or one that
    is not English, counts as unreachable, which is retried.
    """
    text = redact(" ".join(message.split()), dsn)
    for pattern, kind, hint in _BY_TEXT:
        if match := re.search(pattern, text, re.IGNORECASE):
            return kind(text, hint=match.expand(hint).replace("<role>", _role(dsn)))
    if sqlstate is None or sqlstate.startswith(_TRANSIENT):
        return PostgresUnreachableError(text)
    if sqlstate == "55006":
        return SlotBusyError(text)
    for prefix, hint in _BY_STATE:
        if sqlstate.startswith(prefix):
            return PostgresRefusedError(text, hint=hint)
    return PostgresRefusedError(f"{text} (SQLSTATE {sqlstate})")


def user(dsn: str) -> str:
    """The user in `dsn`; empty if libpq chooses it."""
    return _known(dsn).get("user", "")


def certificate_files(dsn: str) -> dict[str, Path]:
    """The files with certificates that libpq reads, by option; without libpq's default places."""
    known = _environment() | _known(dsn)
    given = {name: known.get(name, "") for name in ("sslcert", "sslrootcert")}
    return {name: Path(path) for name, path in given.items() if path not in ("", "system")}


def database_name(dsn: str) -> str:
    """The database that libpq connects to: of `dsn`, of PGDATABASE, or named like the user."""
    known = _environment() | _parse(dsn)
    return known.get("dbname") or known.get("user", "")


def _role(dsn: str) -> str:
    name = user(dsn)
    return quote_ident(name) if name else "<role>"


# Connection failures, serialization, resources, shutdown and cancel, locks, I/O.
_TRANSIENT = (
    "08",
    "40",
    "53",
    "57014",
    "57P01",
    "57P02",
    "57P03",
    "57P05",
    "25P03",
    "55P03",
    "58000",
    "58030",
)

_BY_STATE = (
    ("28", "Check user and password of source.dsn and the server's pg_hba.conf."),
    ("3D000", "Correct dbname in source.dsn, or create the database."),
    ("42P01", "Check the name. As in SQL, names with capitals or dots need double quotes."),
    ("42501", "Grant the privileges that `tailrace init --print-sql` prints."),
    ("25006", "This is a standby: connect to the primary, or add target_session_attrs=read-write."),
)

_CREDENTIALS = "Check user and password of source.dsn (or PGUSER, PGPASSWORD, the password file)."
_CERTIFICATE = (
    "Set sslrootcert in source.dsn to the certificate of the authority that signed the server's "
    "certificate, and host to a name in that certificate."
)

_BY_TEXT: tuple[tuple[str, type[TailraceError], str], ...] = (
    (r"can no longer (get changes from|access) replication slot", SlotLostError, ""),
    (r"requested WAL segment \w+ has already been removed", SlotLostError, ""),
    (r"replication slot .* (has been invalidated|is lost)", SlotLostError, ""),
    (r'replication slot "[^"]*" does not exist', SlotLostError, ""),
    (r'replication slot "[^"]*" is active', SlotBusyError, ""),
    (
        r'publication "([^"]*)" does not exist',
        PostgresRefusedError,
        r'Create it with `tailrace init`, or: CREATE PUBLICATION "\1" FOR TABLE ...; '
        "A slot cannot read changes older than its publication.",
    ),
    (
        r"logical decoding (on standby )?requires",
        PostgresRefusedError,
        "ALTER SYSTEM SET wal_level = logical; then restart PostgreSQL.",
    ),
    (
        r"replication slot .* was not created in this database",
        PostgresRefusedError,
        "A slot belongs to one database: correct dbname in source.dsn, or set another source.slot.",
    ),
    (
        r"all replication slots are in use",
        PostgresRefusedError,
        "Drop an unused slot, or raise max_replication_slots and restart PostgreSQL.",
    ),
    (
        r"(permission denied to (start WAL sender|use replication slots)|must be superuser or "
        r"replication role)",
        PostgresRefusedError,
        "ALTER ROLE <role> REPLICATION;",
    ),
    (
        r"no pg_hba\.conf entry|pg_hba\.conf rejects",
        PostgresRefusedError,
        "Add a line for this user, database and address to pg_hba.conf and reload; "
        "replication=database connections match the database's name, not `replication`.",
    ),
    (r"authentication failed|no password supplied", PostgresRefusedError, _CREDENTIALS),
    (
        r'role "[^"]*" (does not exist|is not permitted to log in)',
        PostgresRefusedError,
        _CREDENTIALS,
    ),
    (
        r'database "[^"]*" does not exist',
        PostgresRefusedError,
        "Correct dbname in source.dsn, or create the database.",
    ),
    (
        r"certificate verify failed|server certificate for|root certificate file|"
        r"certificate authority|could not (load|read) (private key|certificate|root cert)",
        PostgresRefusedError,
        _CERTIFICATE,
    ),
    (
        r"server does not support SSL",
        PostgresRefusedError,
        "Enable TLS in the server (ssl = on), or set another sslmode for a trusted network.",
    ),
)


def lacks_privilege(error: TailraceError) -> bool:
    """Whether PostgreSQL refused because the role lacks a privilege."""
    return isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege)


def dsn_of(**parameters: str) -> str:
    """A connection string of libpq parameters; empty values are left out.

    >>> dsn_of(host="db", dbname="my shop", user="")
    "host=db dbname='my shop'"
    """
    return make_conninfo("", **{name: value for name, value in parameters.items() if value})
